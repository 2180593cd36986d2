// Parts that several panels use.

import { Component } from "preact";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Severity } from "./api.ts";

const ICON_PATHS = {
  check: "M3 8.5 6.5 12 13 4.5",
  cross: "M4 4 12 12 M12 4 4 12",
  play: "M5 3 13 8 5 13Z",
  stop: "M4 4H12V12H4Z",
  pause: "M5.5 3V13 M10.5 3V13",
  circle: "M8 2.5A5.5 5.5 0 1 1 7.99 2.5Z",
  ready: "M8 2.5A5.5 5.5 0 1 1 7.99 2.5Z M8 6.5A1.5 1.5 0 1 1 7.99 6.5Z",
  turn: "M13 8A5 5 0 1 1 11 4 M11 1V4.5H7.5",
  minor: "M8 2 15 14H1Z M8 6.5V10 M8 12V12.2",
  major: "M5 1.5H11L14.5 5V11L11 14.5H5L1.5 11V5Z M5.5 5.5 10.5 10.5 M10.5 5.5 5.5 10.5",
  away: "M2 2 14 14 M4 6A6 6 0 0 0 2 8 M12.5 6.5A6 6 0 0 1 14 8 M6 10A3 3 0 0 1 10 10 M8 13V13.2",
  up: "M8 13V3 M4 7 8 3 12 7",
  info: "M8 2.5A5.5 5.5 0 1 1 7.99 2.5Z M8 7.5V11 M8 5V5.2",
  next: "M3 3 9 8 3 13Z M12 3V13",
} as const;

export type IconName = keyof typeof ICON_PATHS;

/** A sign beside a word: never alone. */
export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={ICON_PATHS[name]} />
    </svg>
  );
}

let usedIds = 0;

/** An id for one component. Those of preact's `useId` begin anew with each drawing of the page from its root. */
function useUniqueId(): string {
  const [id] = useState(() => `part-${(usedIds += 1)}`);
  return id;
}

const SEVERITY_ICON: Record<Severity, IconName> = { ok: "check", minor: "minor", major: "major" };

export function SeverityMark({ severity }: { severity: Severity }) {
  return (
    <span class={`mark ${severity}`}>
      <Icon name={SEVERITY_ICON[severity]} /> {severity}
    </span>
  );
}

/** A panel that fails alone: the others go on. */
export class Panel extends Component<
  { id: string; title: string; aside?: ComponentChildren; children: ComponentChildren },
  { failure: string | null }
> {
  override state = { failure: null };

  static override getDerivedStateFromError(error: unknown) {
    return { failure: error instanceof Error ? error.message : String(error) };
  }

  render() {
    const { id, title, aside, children } = this.props;
    const { failure } = this.state;
    return (
      <section id={id} class="panel" aria-labelledby={`${id}-title`} tabIndex={-1}>
        <div class="panel-head">
          <h2 id={`${id}-title`}>{title}</h2>
          {aside}
        </div>
        {failure === null ? (
          children
        ) : (
          <p class="mark major">This part of the page failed: {failure}. Load the page again.</p>
        )}
      </section>
    );
  }
}

interface ButtonProps {
  label: ComponentChildren;
  /** Reason why the button cannot be pressed now; empty where it can. */
  reason?: string;
  /** Purpose of the button. */
  title?: string;
  busy?: boolean;
  class?: string;
  name?: string;
  onPress: () => void;
  /** Called when the reason should be seen: at focus, hover and tap; null when no longer. */
  onHint?: (hint: string | null) => void;
}

/** A button that shows why it cannot be pressed. It stays reachable by keyboard then, so that the reason is too. */
export function Button({ label, reason = "", title, busy, class: kind = "", name, onPress, onHint }: ButtonProps) {
  const id = useUniqueId();
  const hint = reason || title || "";
  const show = () => onHint?.(hint || null);
  const hide = () => onHint?.(null);
  return (
    <>
      <button
        type="button"
        class={`button ${kind}`}
        data-name={name}
        aria-disabled={reason !== "" || busy ? "true" : undefined}
        aria-busy={busy ? "true" : undefined}
        aria-describedby={hint ? id : undefined}
        title={hint || undefined}
        onClick={() => (reason === "" && !busy ? onPress() : show())}
        onFocus={show}
        onBlur={hide}
        onMouseEnter={show}
        onMouseLeave={hide}
      >
        {busy && <span class="spinner" aria-hidden="true" />}
        {label}
      </button>
      {hint && (
        <span id={id} hidden>
          {hint}
        </span>
      )}
    </>
  );
}

interface DialogProps {
  title: string;
  confirm: string;
  confirmClass?: string;
  children: ComponentChildren;
  /** Called with the fields of the form; returns the reason why they are not right, or nothing. */
  onConfirm?: (fields: FormData) => string | void;
  onClose: () => void;
}

/** A form before the page. Escape closes it. */
export function Dialog({ title, confirm, confirmClass = "", children, onConfirm, onClose }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const problem = useRef<HTMLParagraphElement>(null);
  const id = useUniqueId();
  useEffect(() => {
    const element = dialog.current;
    element?.showModal();
    // Closing gives the focus back to what had it.
    return () => element?.close();
  }, []);
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const reason = onConfirm?.(new FormData(event.currentTarget as HTMLFormElement));
    if (reason && problem.current) problem.current.textContent = reason;
    else onClose();
  };
  return (
    <dialog ref={dialog} aria-labelledby={id} onClose={onClose}>
      <form method="dialog" onSubmit={submit}>
        <h2 id={id}>{title}</h2>
        {children}
        <p class="problem" role="alert" ref={problem} />
        <div class="dialog-buttons">
          {onConfirm && (
            <button type="submit" class={`button ${confirmClass}`}>
              {confirm}
            </button>
          )}
          <button type="button" class="button" autofocus={confirmClass === "danger"} onClick={onClose}>
            {onConfirm ? "Cancel" : confirm}
          </button>
        </div>
      </form>
    </dialog>
  );
}

/** Choice of one among few. */
export function Choice<T extends string>(props: {
  legend: string;
  options: readonly T[];
  value: T;
  onChange: (value: T) => void;
}) {
  const name = useUniqueId();
  return (
    <fieldset class="choice">
      <legend>{props.legend}</legend>
      {props.options.map((option) => (
        <label key={option}>
          <input
            type="radio"
            name={name}
            value={option}
            checked={option === props.value}
            onChange={() => props.onChange(option)}
          />
          <span>{option}</span>
        </label>
      ))}
    </fieldset>
  );
}

/** A cell of a table. On a narrow screen, where a row becomes a card, its label stands beside it. */
export function Cell(props: { label: string; class?: string; children: ComponentChildren }) {
  return (
    <td role="cell" class={props.class ?? ""} data-label={props.label}>
      {props.children}
    </td>
  );
}
