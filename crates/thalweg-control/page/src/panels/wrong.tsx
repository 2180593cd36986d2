// What is wrong, and which sources are missing in incomplete events.

import { useState } from "preact/hooks";
import type { Alarm, Status } from "../api.ts";
import type { Model } from "../model.ts";
import { Button, Dialog, Icon, Panel, SeverityMark } from "../parts.tsx";
import { formatCount, formatText, formatTime } from "../text.ts";
import { absenteesOf, placeOf, troublesOf } from "../trouble.ts";
import type { Trouble } from "../trouble.ts";

const MAX_TROUBLES = 50;

function AcknowledgeDialog({ model, alarm, onClose }: { model: Model; alarm: Alarm; onClose: () => void }) {
  const submit = (fields: FormData) => {
    const why = String(fields.get("why") ?? "").trim();
    if (why === "") return "Others will want to know why.";
    const path = `/api/v1/alarms/${encodeURIComponent(alarm.id)}/acknowledge`;
    void model.change(`alarm ${alarm.id}`, "acknowledge", path, { why });
    return undefined;
  };
  return (
    <Dialog title="Acknowledge the alarm" confirm="Acknowledge" onConfirm={submit} onClose={onClose}>
      <p>{formatText(alarm.text)}</p>
      <label class="field">
        Why, or what is being done <input name="why" maxLength={500} autocomplete="off" autofocus />
      </label>
    </Dialog>
  );
}

function TroubleRow({ model, trouble, onAcknowledge }: { model: Model; trouble: Trouble; onAcknowledge: () => void }) {
  const { alarm } = trouble;
  return (
    <li class={`trouble ${trouble.severity}`}>
      <SeverityMark severity={trouble.severity} />
      <div class="trouble-words">
        <strong class="subject">{trouble.subject}</strong>{" "}
        {trouble.where && <span class="where">{trouble.where}</span>}
        <p>
          {trouble.text}
          {alarm && alarm.text !== trouble.text && ` · ${formatText(alarm.text)}`}
          {alarm && <span class="quiet"> since {formatTime(alarm.since_at)}</span>}
          {alarm && !alarm.is_active && <span class="quiet"> (over)</span>}
        </p>
      </div>
      {alarm &&
        (alarm.is_acknowledged ? (
          <span class="quiet">acknowledged by {formatText(alarm.acknowledged_by)}</span>
        ) : (
          <Button
            class="small"
            label="Acknowledge"
            reason={model.silentSeconds === null ? "" : "there is no contact with the service"}
            busy={model.pending.has(`alarm ${alarm.id}`)}
            onPress={onAcknowledge}
          />
        ))}
    </li>
  );
}

export function Wrong({ model, status }: { model: Model; status: Status }) {
  const [asked, setAsked] = useState<Alarm | null>(null);
  const troubles = troublesOf(status);
  const silenced = status.silenced_alarms;
  return (
    <Panel
      id="wrong"
      title="What is wrong"
      aside={silenced > 0 && <span class="mark minor">{formatCount(silenced)} silenced</span>}
    >
      {troubles.length === 0 ? (
        <p class="all-well">
          <span class="mark ok">
            <Icon name="check" /> nothing
          </span>
        </p>
      ) : (
        <ul class="troubles">
          {troubles.slice(0, MAX_TROUBLES).map((trouble, index) => (
            <TroubleRow
              key={`${trouble.subject} ${index}`}
              model={model}
              trouble={trouble}
              onAcknowledge={() => setAsked(trouble.alarm)}
            />
          ))}
        </ul>
      )}
      {troubles.length > MAX_TROUBLES && <p>and {formatCount(troubles.length - MAX_TROUBLES)} more</p>}
      {asked && <AcknowledgeDialog model={model} alarm={asked} onClose={() => setAsked(null)} />}
    </Panel>
  );
}

const SHOWN_EVENTS = 5;

export function Incomplete({ status }: { status: Status }) {
  const events = status.incomplete_events;
  const absentees = absenteesOf(status);
  const [isOpen, setIsOpen] = useState(false);
  const shown = isOpen ? events : events.slice(0, SHOWN_EVENTS);
  return (
    <Panel
      id="incomplete"
      title="Incomplete events"
      aside={<span class="big">{formatCount(status.totals.incomplete)}</span>}
    >
      {absentees.length > 0 && (
        <ul class="absentees">
          {absentees.map((absentee) => (
            <li key={absentee.source}>
              <strong class="subject">{absentee.source}</strong> <span class="where">{absentee.where}</span>
              <br />
              missing in {formatCount(absentee.events)} of the last {formatCount(events.length)}
            </li>
          ))}
        </ul>
      )}
      {events.length > 0 && (
        <>
          <ul class="events">
            {shown.map((event, index) => (
              <li key={`${event.builder} ${event.event_text} ${index}`}>
                event {formatCount(event.event, event.event_text)} without{" "}
                {event.missing.map((missing) => `${formatText(missing.source)}${bracketed(placeOf(missing))}`).join("; ")}
              </li>
            ))}
          </ul>
          {events.length > SHOWN_EVENTS && (
            <button type="button" class="button small" aria-expanded={isOpen} onClick={() => setIsOpen(!isOpen)}>
              {isOpen ? "Show fewer" : `Show all ${events.length}`}
            </button>
          )}
        </>
      )}
      {events.length === 0 && <p class="quiet">none of late</p>}
    </Panel>
  );
}

function bracketed(text: string): string {
  return text === "" ? "" : ` (${text})`;
}
