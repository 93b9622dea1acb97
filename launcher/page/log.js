// SPDX-License-Identifier: Apache-2.0
// A rank's output: both streams in the order of arrival. At most kMostLines are kept, and of them
// only those in sight are in the document.

const kMostLines = 5000;
const kLongest = 4000;        // characters of a line
const kTail = 128 * 1024;     // bytes of each stream to begin with
const kRow = 18;              // pixels, as .row has it
const kSpare = 12;            // rows beyond what is seen

// Bytes of one stream to lines.
class Splitter {
  #decoder = new TextDecoder();
  #rest = '';
  #more = 0;       // characters of it that were not kept
  #style = kPlain;

  constructor(isError, cutFirst) {
    this.isError = isError;
    this.cutFirst = cutFirst;  // it begins within a line
  }

  // Calls `onLine` for each that is whole.
  add(bytes, onLine) {
    const parts = this.#decoder.decode(bytes, { stream: true }).split('\n');
    parts.forEach((part, i) => {
      this.#grow(part);
      if (i + 1 < parts.length) this.#endLine(onLine);
    });
  }
  get open() { return this.#rest === '' ? null : this.#line(); }
  finish(onLine) {
    if (this.#rest !== '') this.#endLine(onLine);
  }

  // Of a line that was overwritten by carriage returns only the last state counts.
  #grow(part) {
    let text = this.#rest + part;
    const end = /\r*$/.exec(text).index;
    const back = text.lastIndexOf('\r', end - 1);
    if (end > 0 && back >= 0) {
      text = text.slice(back + 1);
      this.#more = 0;
    }
    if (text.length > 2 * kLongest) {
      this.#more += text.length - kLongest;
      text = text.slice(0, kLongest);
    }
    this.#rest = text;
  }
  #line() {
    const text = this.#rest.replace(/\r+$/, '');
    const more = this.#more + Math.max(0, text.length - kLongest);
    return { raw: text.slice(0, kLongest), more, style: this.#style, isError: this.isError };
  }
  #endLine(onLine) {
    const line = this.#line();
    this.#rest = '';
    this.#more = 0;
    this.#style = spans(line.raw, line.style).state;
    if (this.cutFirst) this.cutFirst = false;
    else onLine(line);
  }
}

// Follows a rank's streams until close(), through lost connections: no byte twice, none left out, unless it
// was too slow for what the launcher keeps. Its requests are short: a browser has six connections to a server,
// and each page's events hold one.
class Follower {
  #stop = new AbortController();
  #parts;
  lines = [];
  dropped = 0;  // at the front
  state = 'connecting';

  constructor(client, job, rank, streams, onChange) {
    this.client = client;
    this.job = job;
    this.rank = rank;
    this.onChange = onChange;
    this.#parts = streams.map((stream) => ({ stream, at: 0, splitter: null }));
    queueMicrotask(() => this.#start());  // not before whoever makes this has it
  }
  close() { this.#stop.abort(); }
  // Lines that are not whole yet, behind the others.
  get open() { return this.#parts.map((part) => part.splitter?.open ?? null).filter((line) => line !== null); }

  get #path() { return `/v1/jobs/${encodeURIComponent(this.job.id)}/ranks/${this.rank}`; }

  async #start() {
    for (let isLast = false; !isLast;) {
      isLast = this.job.end !== null;  // nothing comes after it
      const isNew = await this.#persist(() => this.#look());
      if (isNew === undefined) return;
      if (isLast) this.#parts.forEach((part) => part.splitter?.finish((line) => this.#push(line)));
      const state = isLast ? 'ended' : 'following';
      if (isNew || state !== this.state) {
        this.state = state;
        this.onChange();
      }
      if (this.job.end === null) await pauseBetweenRounds();
    }
  }

  // Takes what has come, or nothing if a stream cannot be read; of both streams in the order of its arrival: `order`
  // has the stream and the offset at the end of each run of bytes. What is older than that is stdout's first. Whether
  // anything has come.
  async #look() {
    if (this.rank >= this.job.ranks.state.length) return false;  // the next attempt has not begun
    const log = (await this.client.json(this.#path)).log || {};
    for (const part of this.#parts) this.#begin(part, log[part.stream] || {});
    const texts = await Promise.all(this.#parts.map((part) => this.#read(part, (log[part.stream] || {}).end || 0)));
    const begins = this.#parts.map((part) => part.at);
    const give = (i, end) => {
      const part = this.#parts[i];
      const piece = texts[i].subarray(part.at - begins[i], Math.max(part.at, end) - begins[i]);
      part.at += piece.length;
      part.splitter.add(piece, (line) => this.#push(line));
    };
    const order = Array.isArray(log.order) ? log.order : [];
    this.#parts.forEach((part, i) => {
      const first = order.find(([stream]) => stream === part.stream);
      if (first === undefined) give(i, Infinity);
    });
    for (const [stream, end] of order) {
      const i = this.#parts.findIndex((part) => part.stream === stream);
      if (i >= 0) give(i, Number(end));
    }
    this.#parts.forEach((_, i) => give(i, Infinity));
    return texts.some((text) => text.length > 0);
  }
  // Near the end at first, then where it stopped, if that is still kept.
  #begin(part, { begin = 0, end = 0 }) {
    if (part.splitter === null) {
      part.at = Math.max(begin, end - kTail);
      part.splitter = new Splitter(part.stream === 'stderr', part.at > 0);
      if (part.at > 0) this.#say(`${size(part.at)} of earlier ${part.stream} ${part.at > begin ? 'is not shown' : 'is no longer kept'}`);
    } else if (part.at < begin) {
      part.splitter.finish((line) => this.#push(line));
      this.#say(`${size(begin - part.at)} of ${part.stream} is no longer kept`);
      part.at = begin;
    }
  }
  async #read(part, end) {
    const pieces = [];
    let size = 0;
    for (let last = -1; part.at + size < end && size > last;) {
      last = size;
      await this.client.stream(`${this.#path}/log?stream=${part.stream}&offset=${part.at + size}&limit=${end - part.at - size}`, this.#stop.signal, (bytes) => {
        pieces.push(bytes);
        size += bytes.length;
      });
    }
    const all = new Uint8Array(Math.min(size, Math.max(0, end - part.at)));
    let at = 0;
    for (const piece of pieces) {
      all.set(piece.subarray(0, all.length - at), at);
      at = Math.min(all.length, at + piece.length);
    }
    return all;
  }

  // Until it works, or nobody wants it any more (undefined).
  async #persist(attempt) {
    for (let failures = 1; !this.#stop.signal.aborted; ++failures) {
      try {
        // The launcher stays for a moment, for the output of the rank that is then shown.
        if (!this.job.isGone || this.job.lastRank === this.rank) return await attempt();
      } catch (error) {
        if (this.#stop.signal.aborted) return undefined;
        this.state = error instanceof Refusal ? error.message : 'interrupted';
        this.onChange();
        await new Promise((done) => setTimeout(done, backOff(failures)));
      }
      if (this.job.isGone) {
        this.state = 'gone';
        this.onChange();
        return undefined;
      }
    }
    return undefined;
  }

  #push(line) {
    this.lines.push(line);
    // Not at each line: moving the rest costs.
    if (this.lines.length > kMostLines + 500) {
      const extra = this.lines.length - kMostLines;
      this.lines.splice(0, extra);
      this.dropped += extra;
    }
  }
  #say(text) {
    this.#push({ raw: `[${text}]`, more: 0, style: kPlain, isError: false, isOwn: true });
  }
}

function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(0)} KiB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

// The text of a line without colours, to search and to copy.
const plainText = (line) => spans(line.raw, line.style).pieces.map((piece) => piece.text).join('');

// One line as an element. Its text is only ever set as text.
function rowElement(line, query) {
  const row = document.createElement('div');
  row.className = `row${line.isError ? ' err' : ''}${line.isOwn ? ' own' : ''}`;
  const add = (text, name, isHit) => {
    const element = document.createElement(isHit ? 'mark' : 'span');
    if (name !== '') element.className = name;
    element.textContent = text;
    row.append(element);
  };
  const { pieces } = spans(line.raw, line.style);
  if (line.more > 0) pieces.push({ text: ` … ${plural(line.more, 'more character')}`, name: 'dim' });
  for (const { text, name } of pieces) {
    let at = 0;
    const low = query === '' ? '' : text.toLowerCase();
    while (query !== '') {
      const hit = low.indexOf(query, at);
      if (hit < 0) break;
      if (hit > at) add(text.slice(at, hit), name, false);
      add(text.slice(hit, hit + query.length), name, true);
      at = hit + query.length;
    }
    if (at < text.length) add(text.slice(at), name, false);
  }
  return row;
}

// Draws a follower's lines into an element that scrolls.
class Window {
  #frame = 0;
  #atEnd = true;
  #dropped = 0;
  hits = [];
  hit = -1;
  query = '';

  constructor(box, onState) {
    this.box = box;
    this.onState = onState;
    this.all = document.createElement('div');
    this.all.className = 'all';
    this.shown = document.createElement('div');
    this.shown.className = 'shown';
    this.all.append(this.shown);
    box.replaceChildren(this.all);
    box.addEventListener('scroll', () => {
      this.#atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - kRow;
      this.paint();
    });
    this.observer = new ResizeObserver(() => this.paint());
    this.observer.observe(box);
  }
  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.#frame);
  }
  show(follower) {
    this.follower = follower;
    this.#dropped = 0;
    this.#atEnd = true;
    this.hit = -1;
    this.paint();
  }
  get isAtEnd() { return this.#atEnd; }
  toEnd() {
    this.#atEnd = true;
    this.paint();
  }
  search(query) {
    this.query = query.toLowerCase();
    this.hit = -1;
    this.#find();
    if (this.hits.length > 0) this.step(0);
    else this.paint();
  }
  // To the next hit (1), the one before (-1), or the last one (0).
  step(by) {
    if (this.hits.length === 0) return;
    this.hit = by === 0 || this.hit < 0 ? this.hits.length - 1 : (this.hit + by + this.hits.length) % this.hits.length;
    this.#atEnd = false;
    this.box.scrollTop = this.hits[this.hit] * kRow - this.box.clientHeight / 2;
    this.paint();
  }
  paint() {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => { this.#frame = 0; this.#draw(); });
  }

  #lines() { return this.follower ? [...this.follower.lines, ...this.follower.open] : []; }
  #find() {
    this.hits = [];
    if (this.query === '') return;
    this.#lines().forEach((line, i) => { if (plainText(line).toLowerCase().includes(this.query)) this.hits.push(i); });
    if (this.hit >= this.hits.length) this.hit = this.hits.length - 1;
  }
  #draw() {
    if (!this.follower) return;
    const lines = this.#lines(), box = this.box;
    this.#find();
    this.all.style.height = `${lines.length * kRow}px`;
    const gone = this.follower.dropped - this.#dropped;
    this.#dropped = this.follower.dropped;
    if (lines.length * kRow <= box.clientHeight) this.#atEnd = true;
    // Who reads further up keeps the place.
    if (this.#atEnd) box.scrollTop = lines.length * kRow;
    else if (gone > 0) box.scrollTop -= gone * kRow;
    const first = Math.max(0, Math.floor(box.scrollTop / kRow) - kSpare);
    const last = Math.min(lines.length, Math.ceil((box.scrollTop + box.clientHeight) / kRow) + kSpare);
    this.shown.style.top = `${first * kRow}px`;
    this.shown.replaceChildren(...lines.slice(first, last).map((line, i) => {
      const row = rowElement(line, this.query);
      if (this.hits[this.hit] === first + i) row.classList.add('hit');
      return row;
    }));
    this.onState({ count: lines.length, atEnd: this.#atEnd, hits: this.hits.length, hit: this.hit });
  }
}

function Output({ client, job, rank, detail, onSelect }) {
  const box = useRef(null), kept = useRef({});
  const [streams, setStreams] = useState('both');
  const [query, setQuery] = useState('');
  const [seen, setSeen] = useState({ count: 0, atEnd: true, hits: 0, hit: -1 });
  const [copied, setCopied] = useState(false);
  const [follower, setFollower] = useState('');
  useEffect(() => {
    const same = (a, b) => Object.keys(a).every((name) => a[name] === b[name]);
    kept.current.window = new Window(box.current, (next) => setSeen((old) => (same(next, old) ? old : next)));
    return () => kept.current.window.close();
  }, []);
  useEffect(() => {
    if (rank < 0) return undefined;
    const made = new Follower(client, job, rank, streams === 'both' ? ['stdout', 'stderr'] : [streams], () => {
      setFollower(made.state);
      kept.current.window.paint();
    });
    kept.current.follower = made;
    kept.current.window.show(made);
    setFollower(made.state);
    return () => made.close();
  }, [job, rank, streams]);
  const search = (text) => { setQuery(text); kept.current.window.search(text); };
  const step = (by) => kept.current.window.step(by);
  const copy = async () => {
    const { lines, open } = kept.current.follower;
    await navigator.clipboard.writeText([...lines, ...open].map(plainText).join('\n'));
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  const last = job.ranks.state.length - 1;
  const said = { connecting: 'connecting', following: seen.count === 0 ? 'no output yet' : '', ended: 'complete', interrupted: 'interrupted',
    gone: seen.count === 0 ? 'not read before the launcher ended' : 'the rest was not read before the launcher ended' }[follower];
  return html`
    <div class="bar">
      <h2>Output</h2>
      <label>rank <input class="rank number" type="number" min="0" max=${Math.max(0, last)} value=${rank < 0 ? '' : rank} disabled=${last < 0}
        onChange=${(event) => { const n = Number(event.target.value); if (Number.isInteger(n) && n >= 0 && n <= last) onSelect(n); }} /></label>
      <label><span class="hidden">stream</span><select value=${streams} onChange=${(event) => setStreams(event.target.value)}>
        <option value="both">stdout and stderr</option><option value="stdout">stdout</option><option value="stderr">stderr</option></select></label>
      <input class="search" type="search" placeholder="Search" aria-label="Search in the lines below" value=${query}
        onInput=${(event) => search(event.target.value)}
        onKeyDown=${(event) => { if (event.key === 'Enter') { step(event.shiftKey ? -1 : 1); event.preventDefault(); } }} />
      ${query !== '' && html`
        <span class="number" role="status">${seen.hits === 0 ? 'not found' : `${seen.hit + 1} of ${seen.hits.toLocaleString('en')}`}</span>
        <button type="button" aria-label="Previous match" disabled=${seen.hits === 0} onClick=${() => step(-1)}>↑</button>
        <button type="button" aria-label="Next match" disabled=${seen.hits === 0} onClick=${() => step(1)}>↓</button>`}
      <button type="button" disabled=${seen.count === 0} onClick=${copy}>${copied ? 'Copied' : 'Copy'}</button>
    </div>
    <p class="now quiet rank-line">${rank < 0 ? 'The output of the ranks appears here once they run.' : detail}</p>
    <div class="pane">
      <div class="lines" tabindex="0" role="region" aria-label=${rank < 0 ? 'Output' : `Output of rank ${rank}`} ref=${box}></div>
      ${!seen.atEnd && html`<button type="button" class="follow" onClick=${() => kept.current.window.toEnd()}>↓ Follow</button>`}
    </div>
    <p class="quiet now"><span class="number">${rank < 0 ? '' : plural(seen.count, 'line')}</span>${said === undefined ? ` · ${clean(follower)}` : said && ` · ${said}`}${rank >= 0 && streams === 'both' ? ' · a bar on the left marks stderr' : ''}</p>`;
}
