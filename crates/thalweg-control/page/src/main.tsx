// The operator's page: begins here.

import "uplot/dist/uPlot.min.css";
import "./style.css";

import { render } from "preact";
import { Model } from "./model.ts";
import { Commands, Failures } from "./panels/commands.tsx";
import { HistoryPanel } from "./panels/history.tsx";
import { LatestPanel } from "./panels/latest.tsx";
import { LedgerPanel, Totals } from "./panels/ledger.tsx";
import { Clocks, Processes } from "./panels/machines.tsx";
import { Messages, Runs } from "./panels/records.tsx";
import { Sources } from "./panels/sources.tsx";
import { applyTheme, ContactBanner, Top } from "./panels/top.tsx";
import { Incomplete, Wrong } from "./panels/wrong.tsx";
import { formatText } from "./text.ts";

function Login({ model, reason }: { model: Model; reason: string }) {
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const token = new FormData(event.currentTarget as HTMLFormElement).get("token");
    void model.logIn(String(token ?? "").trim());
  };
  return (
    <main class="login">
      <h1>Thalweg</h1>
      <form onSubmit={submit}>
        <label class="field">
          Token of this service
          <input name="token" type="password" autocomplete="current-password" required autofocus />
        </label>
        <p class="quiet">
          <code>thalweg control</code> prints an address that has one; its directory has the file tokens.toml.
        </p>
        <p class="problem" role="alert">
          {reason}
        </p>
        <button type="submit" class="button go">
          Log in
        </button>
      </form>
    </main>
  );
}

function Page({ model, theme, onTheme }: { model: Model; theme: number; onTheme: () => void }) {
  if (model.login !== null) return <Login model={model} reason={model.login} />;
  const { status, silentSeconds, history } = model;
  return (
    <div class={model.isCurrent() ? "page" : "page old-values"}>
      <a class="skip" href="#sources">
        To the sources
      </a>
      <Top model={model} onTheme={onTheme} />
      <ContactBanner silentSeconds={silentSeconds} hasStatus={status !== null} />
      <Commands model={model} />
      <Failures model={model} />
      <main class="panels">
        {status && (
          <>
            <div class="column">
              <Wrong model={model} status={status} />
              <Sources status={status} history={history} />
            </div>
            <div class="column">
              <Totals status={status} />
              <Incomplete status={status} />
              <LedgerPanel status={status} />
            </div>
            <div class="wide">
              <HistoryPanel history={history} theme={theme} />
              <LatestPanel status={status} theme={theme} />
            </div>
            <div class="column">
              <Processes model={model} status={status} />
            </div>
            <div class="column">
              <Clocks status={status} />
            </div>
            <div class="wide">
              <Messages messages={model.messages} />
              <Runs model={model} status={status} />
            </div>
          </>
        )}
      </main>
      {status && (
        <footer>
          {formatText(status.topology)} · thalweg {formatText(status.service.version)} on{" "}
          {formatText(status.service.host)}
        </footer>
      )}
    </div>
  );
}

/** Title of the tab. A hidden page gets no news, so that its title has no state. */
function titleOf(model: Model): string {
  const { status } = model;
  const name = status ? formatText(status.experiment) : "Thalweg";
  if (document.hidden || !status) return name;
  if (!model.isCurrent()) return `no contact – ${name}`;
  const run = status.run ? ` run ${status.run.number}` : "";
  return `${status.state}${run} – ${name}`;
}

const root = document.getElementById("page");
if (root) {
  applyTheme();
  root.textContent = "";
  /** Changes with the colors: drawings on canvases follow it. */
  let theme = 0;
  const draw = () => {
    document.title = titleOf(model);
    render(<Page model={model} theme={theme} onTheme={changeTheme} />, root);
  };
  const changeTheme = () => {
    theme += 1;
    model.redraw();
  };
  const model = new Model(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changeTheme);
  document.addEventListener("visibilitychange", () => {
    document.title = titleOf(model);
  });
  void model.begin();
}
