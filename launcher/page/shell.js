// SPDX-License-Identifier: Apache-2.0
// The frame around what the page shows, a job or a node: the token, the loop that asks, and silence. It only ever reads.

const { html, render, useEffect, useRef, useState } = window.htmPreact;

const kPollMs = 1000;
const kHiddenPollMs = 5000;   // nobody looks
const kSilentMs = 5000;       // without an answer; then the page says so

const client = new Client();
const app = {
  view: null,                 // what is shown: jobView or nodeView
  isAsking: false,            // for the token
  wrongToken: false,
  why: '',                    // there is no answer
  answered: 0,                // when the last answer came; performance.now()
  failures: 0,
  retryAt: 0,
  generation: 0,              // of the loop below: older ones stop
};

function update() {
  render(html`<${Page} />`, document.getElementById('app'));
}

function start(token) {
  client.token = token;
  const mine = ++app.generation;
  Object.assign(app, { isAsking: false, failures: 0, answered: performance.now() });
  update();
  poll(() => mine === app.generation);
}

function askForToken() {
  ++app.generation;
  Object.assign(app, { isAsking: true, wrongToken: client.hasToken });
  app.view.forget();
  client.token = '';
  update();
}

// Until then, or until wake(): out of sight timers may take a minute.
const sleepers = new Set();
const pause = (ms) => new Promise((done) => {
  const end = () => { sleepers.delete(end); done(); };
  sleepers.add(end);
  setTimeout(end, ms);
});
const wake = () => sleepers.forEach((end) => end());
const pauseBetweenRounds = () => pause(document.hidden ? kHiddenPollMs : kPollMs);

// One round after the other, for as long as there is something to hear.
async function poll(isMine) {
  const round = app.view.makeRound(isMine);
  while (isMine() && !app.view.isOver) {
    try {
      await round();
      if (!isMine() || app.view.isOver) break;
      update();
      await pauseBetweenRounds();
    } catch (error) {
      if (!isMine() || app.view.isOver) break;
      if (error instanceof Refusal && error.status === 401) return askForToken();
      app.why = error instanceof Refusal ? error.message : '';
      const wait = backOff(++app.failures);
      app.retryAt = performance.now() + wait;
      update();
      await pause(wait);
    }
  }
  update();
}

function answered() {
  Object.assign(app, { answered: performance.now(), failures: 0, why: '' });
  update();
}

// ---- What is seen ----

const ago = (time) => wholeSeconds((performance.now() - time) / 1000);
const isSilent = () => !app.view.isOver && performance.now() - app.answered > kSilentMs;

function Page() {
  if (app.isAsking) return html`<${Ask} />`;
  if (app.view.isKnown) return app.view.show();
  return html`<div class="ask" role="status"><h1>dtrain</h1><p>${app.failures > 0
    ? `${app.why === '' ? 'No answer from dtrain' : clean(app.why)}. Trying again …` : `Asking for the ${app.view.word} …`}</p></div>`;
}

function Ask() {
  const input = useRef(null);
  useEffect(() => input.current.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    const token = input.current.value.trim();
    if (token !== '') start(token);
  };
  return html`
    <div class="ask">
      <h1>dtrain</h1>
      ${app.wrongToken && html`<p class="bad-text" role="alert">This token is wrong, or no longer valid.</p>`}
      <form onSubmit=${submit}>
        <label>Token<input ref=${input} type="password" autocomplete="off" spellcheck="false" /></label>
        <button type="submit">Show the ${app.view.word}</button>
      </form>
      ${app.view.tokenHint()}
      <p class="quiet">This page keeps it in memory only: after a reload, open the link again.</p>
    </div>`;
}

function Silence() {
  const text = isSilent() ? `No answer for ${ago(app.answered)}${app.why === '' ? '' : `: ${clean(app.why)}`}. ${
    app.retryAt > performance.now() ? `Trying again in ${Math.ceil((app.retryAt - performance.now()) / 1000)} s.` : 'Trying again …'} What you see is that old.` : '';
  // The live region is always there; only the beginning and the end of silence are read out.
  return html`
    <div class="hidden" role="status">${text === '' ? '' : 'No answer from dtrain. What this page shows is old.'}</div>
    ${text !== '' && html`<div class="notice bad" id="silence">${text} ${app.failures > 2 && app.view.lossHint}</div>`}`;
}

function Copy({ text, label }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<button type="button" aria-label=${label} onClick=${copy}>${copied ? 'Copied' : 'Copy'}</button>`;
}
