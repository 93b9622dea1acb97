// SPDX-License-Identifier: Apache-2.0
// The page of a job.

const kDetailMs = 2000;
const kLongestEvent = 8 << 20;  // characters; of dtrain none has so many

const jobView = {
  word: 'job',
  lossHint: 'The launcher may have ended, or the connection to it is lost.',
  job: null,
  selected: -1,
  isChosen: false,            // by the reader
  detail: null,               // of /ranks/RANK
  get isKnown() { return this.job !== null; },
  get isOver() { return this.job !== null && this.job.end !== null; },
  forget() { Object.assign(this, { job: null, detail: null }); },
  show: () => html`<${JobPage} job=${jobView.job} />`,
  tokenHint: () => html`<p class="quiet">It is in the link that <code>dtrain page</code> prints. With <code>--status-listen</code>,
    ${' '}<code>dtrain launch</code> names a file that has it.</p>`,

  makeRound(isMine) {
    let isFollowing = false, lastDetail = -Infinity, lastSeries = -Infinity, lastGpus = -Infinity;
    return async () => {
      if (this.job === null) {
        const { jobs } = await client.json('/v1/jobs');
        if (!isMine()) return;
        if (!Array.isArray(jobs) || jobs.length === 0) throw new Refusal(404, 'there is no job');
        this.job = new Job(jobs[0]);
        answered();
      }
      const path = `/v1/jobs/${encodeURIComponent(this.job.id)}`;
      if (!isFollowing) {
        isFollowing = true;
        followEvents(path, isMine).finally(() => { isFollowing = false; });
      }
      const columns = await client.json(`${path}/columns?since=${this.job.version}`);
      if (!isMine() || this.job.end) return;
      this.job.take(columns);
      answered();
      showSomeRank();
      const now = performance.now();
      if (now - lastSeries > 5000) {
        lastSeries = now;
        this.job.takeSeries(await client.json(`${path}/series?since=${this.job.nextBin}&most=${kMostBins}`));
      }
      if (now - lastGpus > 10000) {
        lastGpus = now;
        try {
          this.job.takeGpus(await client.json(`${path}/gpus?since=${this.job.nextGpuBin}`));
        } catch (error) {  // a launcher of an older build does not know it
          if (!(error instanceof Refusal && error.status === 404)) throw error;
          lastGpus = Infinity;
        }
      }
      if (now - lastDetail > kDetailMs && this.selected >= 0 && this.selected < this.job.ranks.state.length) {
        lastDetail = now;
        const rank = this.selected;
        const detail = await client.json(`${path}/ranks/${rank}`);
        if (rank === this.selected) this.detail = detail;
      }
      if (isMine()) answered();
    };
  },
};

// Ends when the connection does. The last event is the job's end, which says all that is left to say.
async function followEvents(path, isMine) {
  const stop = new AbortController();
  const decoder = new TextDecoder();
  let rest = '';
  try {
    await client.stream(`${path}/events?follow=true&since=${jobView.job.lastEvent}`, stop.signal, (bytes) => {
      if (!isMine()) return stop.abort();
      const lines = (rest + decoder.decode(bytes, { stream: true })).split('\n');
      rest = lines.pop();
      if (rest.length > kLongestEvent) return stop.abort();
      for (const line of lines) if (line !== '') jobView.job.takeEvent(JSON.parse(line));
      showSomeRank();
      if (jobView.isOver) wake();  // while the launcher still has the last output
      answered();
    });
  } catch { /* poll() tells of it */ }
}

// Until the reader chooses one: the one that is to blame, which is known at the end; before it the first that failed,
// else the first.
function showSomeRank() {
  const { job } = jobView;
  if (job.ranks.state.length === 0) return;
  const first = job.end?.rank ?? job.events.find((event) => event.kind === 'rank')?.rank;
  const isKnown = Number.isInteger(first) && first < job.ranks.state.length;
  const rank = isKnown && !jobView.isChosen ? first : Math.max(0, jobView.selected);
  if (job.isGone) job.lastRank ??= rank;
  if (!jobView.isChosen) show(rank);
}

function select(rank) {
  jobView.isChosen = true;
  show(rank);
}

function show(rank) {
  if (rank !== jobView.selected) jobView.detail = null;
  jobView.selected = rank;
  update();
}

// ---- What is seen ----

function JobPage({ job }) {
  const [words] = headline(job);
  document.title = `${words} · ${clean(job.id)}`;
  return html`
    <${Top} job=${job} />
    <${Silence} />
    ${job.end && html`<${Report} end=${job.end} />`}
    ${!job.end && job.waitingFor.length > 0 && html`<${Waiting} job=${job} />`}
    <main>
      <section class="ranks" aria-label="Ranks"><${Ranks} job=${job} /></section>
      <section class="output" aria-label="Output">
        <${Output} client=${client} job=${job} rank=${jobView.selected} detail=${detailText(job)} onSelect=${select} />
      </section>
      <section class="times" aria-label="Phases and events"><${Times} job=${job} /></section>
    </main>`;
}

function Top({ job }) {
  const [words, kind] = headline(job);
  const command = clean(job.command.join(' '));
  const nodes = job.nodes.host.length;
  const silent = isSilent();
  const live = job.end ? html`<span class="quiet">ended ${ago(job.endedAt)} ago</span>`
    : silent ? html`<span class="stale">no answer</span>`
      : html`<span class="live">live</span>`;
  return html`
    <header class="top">
      <div class="line">
        <h1 class="state ${silent ? '' : kind}">${words}${silent ? `, ${ago(app.answered)} ago` : ''}</h1>
        <span>${[job.worldSize > 0 && plural(job.worldSize, 'rank'), nodes > 0 && plural(nodes, 'node')].filter(Boolean).join(' on ')}</span>
        ${job.restarts !== '' && html`<span>${job.restarts}</span>`}
        <span class="number age">${duration(job.seconds)} · ${live}</span>
      </div>
      <div class="line">
        <span class="mono">${clean(job.id)}</span>
        <span class="mono quiet command" title=${command}>${command}</span>
      </div>
    </header>`;
}

function Report({ end }) {
  const [open, setOpen] = useState(false);
  const lines = clean(end.report).split('\n');
  if (end.report === '') return null;
  return html`
    <section class="notice bad report" aria-label="Why the job ended">
      <pre>${lines.slice(0, open ? lines.length : 12).join('\n')}</pre>
      <div class="act">
        ${lines.length > 12 && html`<button type="button" aria-expanded=${open ? 'true' : 'false'} onClick=${() => setOpen(!open)}>${open ? 'Less' : `All ${lines.length} lines`}</button>`}
        <${Copy} text=${lines.join('\n')} />
      </div>
    </section>`;
}

function Waiting({ job }) {
  return html`
    <div class="notice warn">Waiting for ${job.waitingFor.map((node, i) => html`${i > 0 ? ', ' : ''}<b>${clean(node.host)}</b>${
      node.what === '' ? '' : ` (${clean(node.what)})`}`)}${job.waitingMore > 0 ? ` and ${plural(job.waitingMore, 'more node')}` : ''}</div>`;
}

function Ranks({ job }) {
  const tally = job.tally();
  // The next one of this kind, round and round.
  const next = (letter) => {
    const at = job.ranks.state.indexOf(letter, jobView.selected + 1);
    select(at >= 0 ? at : job.ranks.state.indexOf(letter));
  };
  return html`
    <div class="bar">
      <h2>Ranks</h2>
      ${tally.map(([letter, count]) => html`
        <button type="button" class="key" title="Go to the next one" onClick=${() => next(letter)}>
          <${Swatch} letter=${letter} />${count.toLocaleString('en')} ${kStates[letter].many}</button>`)}
    </div>
    <${Grid} job=${job} selected=${jobView.selected} onSelect=${select} />
    ${job.late.rows.length > 0 && html`<${Heat} job=${job} onSelect=${select} />`}
    ${job.gpus.list.length > 0 && job.gpus.bins > 0 && html`<${Gpus} job=${job} />`}
    ${job.ranks.state.length > 0 && html`<${RankTable} job=${job} />`}`;
}

function Swatch({ letter }) {
  const { color, letter: shown } = stateOf(letter);
  return html`<i style=${{ background: `var(--${color})`, color: `var(--${color}-text)` }} aria-hidden="true">${shown}</i>`;
}

const kTablePage = 200;

function RankTable({ job }) {
  const [open, setOpen] = useState(false);
  const [page, setPage] = useState(0);
  const size = job.ranks.state.length, pages = Math.ceil(size / kTablePage);
  const first = Math.min(page, pages - 1) * kTablePage, last = Math.min(size, first + kTablePage);
  const rows = [];
  for (let rank = first; open && rank < last; ++rank) {
    const exit = exitText(job.ranks.exit[rank]);
    rows.push(html`<tr key=${rank}><th scope="row"><button type="button" aria-label=${`Show the output of rank ${rank}`} onClick=${() => select(rank)}>${rank}</button></th>
      <td>${clean(job.hostOf(rank))}</td><td>${stateOf(job.ranks.state[rank]).one}${exit === '' ? '' : `, ${exit}`}</td><td>${job.ranks.pid[rank] || ''}</td></tr>`);
  }
  return html`
    <details onToggle=${(event) => setOpen(event.target.open)}>
      <summary>As a table</summary>
      ${open && html`
        ${pages > 1 && html`<div class="bar now"><button type="button" disabled=${first === 0} onClick=${() => setPage(page - 1)}>Previous</button>
          <span class="number">ranks ${first} to ${last - 1} of ${size}</span>
          <button type="button" disabled=${last === size} onClick=${() => setPage(page + 1)}>Next</button></div>`}
        <div class="table" tabindex="0" role="region" aria-label="Table of ranks"><table>
          <caption class="hidden">Ranks, with their nodes and states</caption>
          <thead><tr><th scope="col">Rank</th><th scope="col">Node</th><th scope="col">State</th><th scope="col">pid</th></tr></thead>
          <tbody>${rows}</tbody>
        </table></div>`}
    </details>`;
}

// The rank whose output is shown, in a line.
function detailText(job) {
  const rank = jobView.selected;
  if (rank < 0) return '';
  const parts = [job.describe(rank)];
  const pid = job.ranks.pid[rank];
  if (pid) parts.push(`pid ${pid}`);
  const collectives = jobView.detail && jobView.detail.collectives;
  if (collectives) {
    if (collectives.now) parts.push(`in ${clean(collectives.now.kind)} ${collectives.now.number} for ${duration(collectives.now.seconds)}`);
    parts.push(`${plural(collectives.operations, 'collective')}, ${duration(collectives.wait_s)} of waiting for others`);
  }
  return parts.join(' · ');
}

// Of the present attempt. The start and what comes after it have a scale each: else nothing would be seen of the
// start.
function bars(job) {
  const begin = Math.max(0, job.events.findLastIndex((event) => event.kind === 'attempt'));  // the present one
  const phases = job.events.slice(begin).filter((event) => event.kind === 'phase' && event.text !== 'end');
  const now = Math.max(job.seconds, 0.001);
  const run = phases.findIndex((event) => event.text === 'run' || event.text === 'stop');
  const split = run < 0 ? now : phases[run].seconds;
  return phases.map((phase, i) => {
    const end = i + 1 < phases.length ? phases[i + 1].seconds : now;
    const [from, to] = run >= 0 && i >= run ? [split, now] : [phases[0].seconds, split];
    const share = (seconds) => Math.min(100, Math.max(0, (seconds - from) / Math.max(1e-3, to - from) * 100));
    const left = Math.min(99, share(phase.seconds));
    return {
      id: phase.id, text: phase.text, seconds: end - phase.seconds, isOn: i + 1 === phases.length && !job.end,
      style: { left: `${left}%`, width: `${Math.max(1, Math.min(100 - left, share(end) - left))}%` },
    };
  });
}

function Times({ job }) {
  const events = job.events.filter((event) => event.kind !== 'phase').reverse();
  return html`
    <div class="bar"><h2>Phases</h2></div>
    <ol class="phases">${bars(job).map((bar) => html`
      <li key=${bar.id}><span>${clean(bar.text)}</span><span class="track"><i class=${bar.isOn ? 'on' : ''} style=${bar.style}></i></span>
        <span class="number">${duration(bar.seconds)}</span></li>`)}</ol>
    <div class="bar"><h2>Events</h2></div>
    ${events.length === 0 ? html`<p class="quiet">Nothing of note so far.</p>`
      : html`<ol class="events" tabindex="0" role="region" aria-label="Events, latest first">${events.map((event) => html`
        <li key=${event.id}><span class="quiet number time">${duration(event.seconds)}</span>
          <span class="text ${kEventClasses[event.kind] || ''}">${eventText(event)}</span></li>`)}</ol>`}`;
}

const kEventClasses = { rank: 'bad-text', lost: 'bad-text', restart: 'bad-text', warning: 'warn-text', silent: 'warn-text' };

function eventText(event) {
  switch (event.kind) {
    case 'rank': return `rank ${event.rank} on ${clean(event.host)} ${clean(event.text)}`;
    case 'silent': return `${clean(event.host)} is silent`;
    case 'restart': return `the attempt failed: ${clean(event.text)}`;
    case 'attempt': return `attempt ${event.attempt} begins`;
    case 'heard': return `${clean(event.host)} is heard again`;
    case 'lost': return `${clean(event.host)} is lost`;
    case 'ended': return `the job ended with exit code ${event.exit_code ?? jobView.job.end.exit_code}`;
    default: return clean(event.text).replace(/^dtrain: (warning: )?/, '');
  }
}
