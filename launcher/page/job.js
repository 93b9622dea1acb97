// SPDX-License-Identifier: Apache-2.0
// The job as far as this page knows it, put together from answers that hold only what changed.

const kMostEvents = 1000;

class Job {
  constructor(view) {
    this.id = String(view.id);
    this.command = (view.command || []).map(String);
    this.end = null;  // of the event "ended"
    this.fromFolder = view.from_folder === true;  // it has ended, and its output can be read all the same
    this.version = 0;
    this.events = [];
    this.lastEvent = 0;
    this.worldSize = 0;
    this.ranks = { state: '', pid: [], exit: [], node: [] };
    this.nodes = { host: [], state: '' };
    this.late = { first: 0, seconds: 10, rows: [] };
    this.gpus = { first: 0, bins: 0, list: [] };
    this.shape = 0;  // grows with what the layout of the grid depends on
    this.takeSummary(view);
  }

  takeSummary(view) {
    this.state = String(view.state);
    this.seconds = Number(view.seconds) || 0;
    this.worldSize = Number(view.world_size) || 0;
    this.counts = view.ranks || { waiting: 0, running: 0, ended: 0, failed: 0 };
    this.waitingFor = (view.waiting_for || []).map((each) => ({ host: String(each.host), what: String(each.what) }));
    this.waitingMore = Number(view.waiting_more) || 0;
    const restarts = view.restarts;
    this.attempt = restarts ? Number(restarts.attempt) || 0 : 0;
    this.nextIn = restarts ? Number(restarts.next_in_s) || 0 : 0;
    // "attempt 2, restart 1 of 3": restarts that a lost host caused may not count.
    this.restarts = restarts && this.attempt > 0
      ? `attempt ${this.attempt}, ${Number(restarts.restarts) || 0} of ${Number(restarts.max_restarts) || 0} restarts used` : '';
  }

  // An answer of /columns.
  take(columns) {
    this.takeSummary(columns);
    if (columns.full) {
      this.ranks = { state: '', pid: [], exit: [], node: [] };
      this.nodes = { host: [], state: '' };
    }
    this.version = Number(columns.version) || 0;
    const rank = columns.rank || {}, node = columns.node || {};
    if (columns.full || rank.node !== undefined || node.host !== undefined) ++this.shape;
    this.ranks.state = mergeText(this.ranks.state, rank.state);
    this.ranks.pid = mergeList(this.ranks.pid, rank.pid);
    this.ranks.exit = mergeList(this.ranks.exit, rank.exit);
    this.ranks.node = mergeList(this.ranks.node, rank.node);
    this.nodes.host = mergeList(this.nodes.host, node.host);
    this.nodes.state = mergeText(this.nodes.state, node.state);
  }

  takeEvent(event) {
    if (!(event.id > this.lastEvent)) return;
    this.lastEvent = event.id;
    if (event.kind === 'ended') {
      this.end = { exit_code: Number(event.exit_code), verdict: String(event.verdict), report: String(event.report || ''), rank: event.rank };
      this.endedAt = performance.now() - 1000 * (Number(event.ago_s) || 0);
      if (event.columns) this.take(event.columns);
    }
    this.events.push({
      id: event.id, kind: String(event.kind), seconds: Number(event.seconds) || 0, host: event.host === undefined ? '' : String(event.host),
      text: String(event.text || ''), rank: event.rank, attempt: event.attempt,
    });
    if (this.events.length > kMostEvents) this.events.splice(0, this.events.length - kMostEvents);
  }

  // Bins of /series: a text a bin, with a letter a rank.
  takeSeries(series) {
    const first = Number(series.first) || 0, rows = (series.late || []).map(String);
    const known = this.late.first + this.late.rows.length;
    this.late = {
      seconds: Number(series.seconds) || 10,
      first: first <= known && this.late.rows.length > 0 ? this.late.first : first,
      rows: first <= known && this.late.rows.length > 0 ? [...this.late.rows.slice(0, first - this.late.first), ...rows] : rows,
    };
    const extra = this.late.rows.length - kMostBins;
    if (extra > 0) {
      this.late.rows.splice(0, extra);
      this.late.first += extra;
    }
  }
  // Bins of /gpus. A GPU that comes later has nothing in the bins before.
  takeGpus(answer) {
    const first = Number(answer.first) || 0, news = answer.gpus || [];
    const isNext = first === this.nextGpuBin;
    const kept = isNext ? this.gpus.bins : 0, known = new Map(isNext ? this.gpus.list.map((gpu) => [gpu.key, gpu]) : []);
    const added = news.length > 0 ? news[0].utilisation_percent.length : 0;
    const list = news.map((each) => {
      const key = `${each.host} ${each.uuid}`, old = known.get(key);
      const gpu = { key, total: each.memory_total_mib };
      for (const { name } of kMetrics) {
        gpu[name] = [...(old ? old[name] : Array(kept).fill(null)), ...each[name]].slice(-kGpuBins);
      }
      return gpu;
    });
    const bins = Math.min(kGpuBins, kept + added);
    this.gpus = { first: first + added - bins, bins, list };
  }
  get nextGpuBin() { return this.gpus.first + this.gpus.bins; }

  get isGone() { return this.end !== null && !this.fromFolder; }
  get nextBin() { return this.late.first + this.late.rows.length; }

  hostOf(rank) {
    const node = this.ranks.node[rank];
    return node === undefined || this.nodes.host[node] === undefined ? '?' : String(this.nodes.host[node]);
  }

  describe(rank) {
    const exit = exitText(this.ranks.exit[rank]);
    return `rank ${rank} on ${clean(this.hostOf(rank))}: ${stateOf(this.ranks.state[rank]).one}${exit === '' ? '' : `, ${exit}`}`;
  }

  // {letter: how many}, in the order of kStates.
  tally() {
    const counts = {};
    for (const letter of this.ranks.state) counts[letter] = (counts[letter] || 0) + 1;
    return Object.keys(kStates).filter((letter) => counts[letter] > 0).map((letter) => [letter, counts[letter]]);
  }
}

const kMostBins = 60;  // ten minutes are shown

// A column is whole, or has what changed by its index.
function mergeList(old, change) {
  if (change === undefined) return old;
  if (Array.isArray(change)) return change;
  const list = old.slice();
  for (const [index, value] of Object.entries(change)) list[Number(index)] = value;
  return list;
}

function mergeText(old, change) {
  if (change === undefined) return old;
  if (typeof change === 'string') return change;
  const letters = [...old];
  for (const [index, value] of Object.entries(change)) letters[Number(index)] = String(value);
  return letters.join('');
}
