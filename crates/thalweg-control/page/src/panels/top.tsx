// Top bar: which experiment, in which state, which run.

import { useState } from "preact/hooks";
import type { StateName, Status } from "../api.ts";
import type { Model } from "../model.ts";
import { Icon } from "../parts.tsx";
import type { IconName } from "../parts.tsx";
import { formatCount, formatStopwatch, formatText } from "../text.ts";

const STATE_LOOK: Record<StateName, { icon: IconName; tone: string }> = {
  idle: { icon: "circle", tone: "quiet" },
  configuring: { icon: "turn", tone: "passing" },
  configured: { icon: "ready", tone: "quiet" },
  arming: { icon: "turn", tone: "passing" },
  armed: { icon: "ready", tone: "ready" },
  starting: { icon: "turn", tone: "passing" },
  running: { icon: "play", tone: "running" },
  pausing: { icon: "turn", tone: "passing" },
  paused: { icon: "pause", tone: "paused" },
  stopping: { icon: "turn", tone: "passing" },
  closing: { icon: "turn", tone: "passing" },
  error: { icon: "major", tone: "error" },
};

/** The state in a word, a color and a sign. Without contact the last state is not shown as if it were the present one. */
function StateBadge({ status, isCurrent, isLost }: { status: Status | null; isCurrent: boolean; isLost: boolean }) {
  if (!isCurrent || !status) {
    return (
      <span class="state away" id="state">
        <Icon name="away" /> {isLost ? "no contact" : "connecting"}
      </span>
    );
  }
  const look = STATE_LOOK[status.state] ?? { icon: "info", tone: "quiet" };
  return (
    <span class={`state ${look.tone}`} id="state">
      <Icon name={look.icon} /> {formatText(status.state)}
    </span>
  );
}

function Drain({ status }: { status: Status }) {
  if (!status.draining) return null;
  const { left, of } = status.draining;
  return (
    <span class="draining">
      draining: {formatCount(left)} of {formatCount(of)}
      <progress aria-label="drained" max={of || 1} value={Math.max(0, (of || 1) - (left || 0))} />
    </span>
  );
}

function LeftOut({ names }: { names: string[] }) {
  if (names.length === 0) return null;
  return <span class="tag test">without {names.map(formatText).join(", ")}</span>;
}

function RunSummary({ status }: { status: Status }) {
  const { run, last_run: last } = status;
  if (run) {
    return (
      <p class="run-summary">
        <strong class="run-number">run {formatCount(run.number)}</strong>
        <span class="run-time">{formatStopwatch(run.seconds)}</span>
        <span class={run.kind === "test" ? "tag test" : "tag"}>{formatText(run.kind)}</span>
        <LeftOut names={status.left_out} />
        {run.note && <span class="run-note">{run.note}</span>}
      </p>
    );
  }
  return (
    <p class="run-summary">
      <strong class="run-number">no run</strong>
      {last && (
        <span>
          last: run {formatCount(last.number)}, {formatText(last.state)}, {formatCount(last.events)} events
        </span>
      )}
      <LeftOut names={status.left_out} />
    </p>
  );
}

type Theme = "auto" | "dark" | "light";
const THEMES: readonly Theme[] = ["auto", "dark", "light"];
const THEME_KEY = "thalweg-theme";

/** Applies the theme that this browser was set to. */
export function applyTheme(): Theme {
  let kept: string | null = null;
  try {
    kept = localStorage.getItem(THEME_KEY);
  } catch {
    // A browser that keeps nothing follows the system.
  }
  const theme = THEMES.find((name) => name === kept) ?? "auto";
  document.documentElement.dataset.theme = theme;
  return theme;
}

function ThemeSwitch({ onChange }: { onChange: () => void }) {
  const [theme, setTheme] = useState(applyTheme);
  const turn = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] as Theme;
    try {
      localStorage.setItem(THEME_KEY, next);
    } catch {
      // Then it holds until the page is loaded again.
    }
    document.documentElement.dataset.theme = next;
    setTheme(next);
    onChange();
  };
  return (
    <button type="button" class="button small" onClick={turn} title="Colors: as the system has them, dark, or light">
      colors: {theme}
    </button>
  );
}

export function Top({ model, onTheme }: { model: Model; onTheme: () => void }) {
  const { status } = model;
  const isCurrent = model.isCurrent();
  return (
    <header class="top">
      <h1>{formatText(status?.experiment ?? "Thalweg")}</h1>
      <StateBadge status={status} isCurrent={isCurrent} isLost={model.silentSeconds !== null} />
      <div class="top-words">
        {status && !isCurrent ? (
          <p class="sentence">{`Last known: ${formatText(status.state)}, ${formatText(status.sentence)}`}</p>
        ) : (
          <p class="sentence" role="status">
            {status ? formatText(status.sentence) : "waiting for the service"}
            {status && status.waits_for.length > 0 && <> · waits for {status.waits_for.join(", ")}</>}{" "}
            {status && <Drain status={status} />}
          </p>
        )}
        {status && <RunSummary status={status} />}
      </div>
      <ThemeSwitch onChange={onTheme} />
    </header>
  );
}

export function ContactBanner({ silentSeconds, hasStatus }: { silentSeconds: number | null; hasStatus: boolean }) {
  if (silentSeconds === null) return null;
  return (
    <p class="banner" role="alert" id="contact">
      <Icon name="away" />
      <span>
        <strong>
          No contact with the service
          {/* A screen reader announces the banner once, not each second. */}
          <span aria-hidden="true"> for {formatCount(silentSeconds)} s</span>.
        </strong>{" "}
        {hasStatus && "The values below are old. "}
        The run goes on without the service; the page connects again by itself.
      </span>
    </p>
  );
}
