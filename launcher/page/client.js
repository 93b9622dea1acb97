// SPDX-License-Identifier: Apache-2.0
// Requests to the server that this page came from. The token is here only, in memory.

class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

class Client {
  #token = '';

  set token(value) { this.#token = value; }
  get hasToken() { return this.#token !== ''; }

  async #ask(path, signal) {
    const answer = await fetch(path, {
      headers: this.#token === '' ? {} : { Authorization: `Bearer ${this.#token}` },
      signal, cache: 'no-store', credentials: 'omit', redirect: 'error', referrerPolicy: 'no-referrer',
    });
    if (answer.ok) return answer;
    let why = `the server answered with ${answer.status}`;
    try {
      why = String((await answer.json()).error || why);
    } catch { /* not an answer of dtrain's */ }
    throw new Refusal(answer.status, why);
  }

  // Fails when nothing has come after `patience`.
  async json(path, patience = 10000) {
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), patience);
    try {
      return await (await this.#ask(path, stop.signal)).json();
    } finally {
      clearTimeout(timer);
    }
  }

  // Gives the body away as it comes, until its end.
  async stream(path, signal, onBytes) {
    const reader = (await this.#ask(path, signal)).body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onBytes(value);
    }
  }
}

// A token in the address, which it leaves at once: going back does not bring it, and no screenshot shows it.
function takeToken() {
  const match = /^#t=([^&]*)$/.exec(location.hash);
  if (location.hash !== '') history.replaceState(null, '', location.pathname);
  return match ? match[1] : '';
}

// How long to wait after so many failures in a row: 1 s, 2 s, 4 s, 8 s, 15 s, 15 s ...
const backOff = (failures) => Math.min(15000, 1000 * 2 ** Math.max(0, failures - 1));
