// SPDX-License-Identifier: Apache-2.0
// The page of a node, as its agent reports it. Whatever is in an answer, here it becomes text and numbers.

const nodeView = {
  word: 'node',
  lossHint: 'The agent, the node or dtrain page may have ended.',
  node: null,                 // of /v1/node
  get isKnown() { return this.node !== null; },
  isOver: false,
  forget() { this.node = null; },
  show: () => html`<${NodePage} node=${nodeView.node} />`,
  tokenHint: () => html`<p class="quiet">It is in the link that <code>dtrain page --node</code> prints.</p>`,

  makeRound(isMine) {
    return async () => {
      const node = await client.json('/v1/node');
      if (!isMine()) return;
      this.node = new NodeFacts(node);
      answered();
      // The agent's silence is that of the page: its server still has the last answer.
      app.answered -= 1000 * this.node.age;
      app.why = this.node.why;
      app.retryAt = performance.now() + 1000 * this.node.retry;
    };
  },
};

const number = (value) => (typeof value === 'number' && Number.isFinite(value) ? value : null);
const list = (value) => (Array.isArray(value) ? value : []);
const object = (value) => (value !== null && typeof value === 'object' ? value : {});
// Visible text; '' where there is none.
const word = (value) => (typeof value === 'string' || typeof value === 'number' ? clean(value) : '');

const gib = (bytes) => { const g = bytes / 2 ** 30; return g > 0 && g < 10 ? g.toFixed(1) : Math.round(g).toLocaleString('en'); };
const moment = (seconds) => (seconds === null ? '' : new Date(seconds * 1000).toLocaleString('sv'));  // 2026-11-27 18:30:00

// What may be pasted into a shell as it is.
const isPlain = (text) => /^[A-Za-z0-9][A-Za-z0-9._:@-]*$/.test(text);

class NodeFacts {
  constructor(node) {
    const silent = object(node.no_answer);
    this.age = number(node.age_s) ?? 0;
    this.why = typeof silent.why === 'string' ? silent.why : '';
    this.retry = number(silent.retry_s) ?? 0;
    this.host = word(node.host);
    this.state = word(node.state);
    this.isResident = node.resident === true;
    this.version = word(node.version);
    this.account = word(node.account);
    this.started = number(node.started_unix_s);
    this.up = this.started === null ? 0 : (number(node.now_unix_s) ?? this.started) - this.started;
    this.machine = [word(node.machine), node.kernel ? `Linux ${word(node.kernel)}` : ''].filter(Boolean).join(', ');
    this.cores = number(node.cores) ?? 0;
    this.freeCores = number(node.free_cores) ?? 0;
    this.memory = number(node.memory_bytes) ?? 0;
    this.memoryAvailable = number(node.memory_available_bytes) ?? 0;
    this.load = number(node.load);
    this.driver = word(node.gpu_driver);
    this.gpuError = word(node.gpu_error);
    this.gpus = list(node.gpus).map((gpu) => new GpuFacts(object(gpu)));
    this.jobs = list(node.jobs).map((job) => new JobFacts(object(job), this.host));
    this.problems = this.#problems(node);
  }

  // [is it bad, text]. An Xid may be a program's own mistake.
  #problems(node) {
    const out = [];
    if (node.quarantine) out.push([true, `The node takes no jobs: ${word(node.quarantine)}`]);
    if (this.gpuError !== '') out.push([true, `The GPUs could not be listed: ${this.gpuError}`]);
    for (const gpu of this.gpus) {
      if (gpu.fault !== '') out.push([true, `GPU ${gpu.index}: ${gpu.fault}`]);
      if (gpu.xid !== null) out.push([false, `GPU ${gpu.index} has reported errors since the agent started, last Xid ${gpu.xid}`]);
      if (gpu.ecc > 0) out.push([true, `GPU ${gpu.index} has had ${plural(gpu.ecc, 'uncorrected ECC error')} since its driver was loaded`]);
    }
    if (node.last_crash) out.push([false, `An earlier agent crashed at ${moment(number(node.last_crash_unix_s))}: ${word(node.last_crash)}`]);
    if (node.why && !node.quarantine) out.push([false, word(node.why)]);
    for (const warning of list(node.warnings)) out.push([false, word(warning)]);
    return out;
  }

  // In words, and how good that is.
  get headline() {
    switch (this.state) {
      case 'ok': return this.problems.some(([isBad]) => isBad) ? ['takes jobs, and has problems', 'busy'] : ['takes jobs', 'good'];
      case 'no agent': return ['no resident agent', 'busy'];
      case 'quarantined': return ['quarantined', 'bad'];
      default: return [this.state === '' ? 'unknown' : this.state, ''];
    }
  }
}

class GpuFacts {
  constructor(gpu) {
    this.index = word(gpu.index);
    this.uuid = word(gpu.uuid);
    this.name = word(gpu.name);
    this.total = number(gpu.memory_total_bytes) ?? 0;
    this.used = number(gpu.memory_used_bytes) ?? 0;
    this.utilisation = number(gpu.utilisation_percent);
    this.temperature = number(gpu.temperature_celsius);
    this.ecc = number(gpu.uncorrected_ecc_errors);
    this.xid = number(gpu.last_xid);
    this.fault = word(gpu.fault);
    this.holder = word(gpu.withheld);
    this.processes = list(gpu.processes).map(object).map((process) => {
      const name = word(process.name) || 'a process';
      const rank = number(process.rank);
      const whose = rank === null ? '' : `rank ${rank} of ${word(process.job)}, `;
      return `${name} (${whose}pid ${word(process.pid)}${process.memory_bytes > 0 ? `, ${gib(process.memory_bytes)} GiB` : ''})`;
    });
  }

  get users() {
    if (this.fault !== '') return [this.fault, ...this.processes];
    if (this.holder !== '') return [this.holder, ...this.processes];
    return this.processes.length > 0 ? this.processes : ['free'];
  }
}

const kJobStates = {
  joining: 'joining', running: 'running', away: 'launcher is away', ending: 'ending', finished: 'finished',
};

class JobFacts {
  constructor(job, host) {
    this.id = word(job.id);
    this.key = `${this.id} ${word(job.attempt)} ${number(job.begin_unix_s)}`;
    this.owner = word(job.owner);
    this.state = Object.hasOwn(kJobStates, job.state) ? kJobStates[job.state] : word(job.state);
    this.since = moment(number(job.begin_unix_s));
    this.seconds = number(job.seconds) ?? 0;
    this.cpus = word(job.cpus);
    this.gpus = list(job.gpus).length;
    // Of a job that the reader of this page may not see there is only the name.
    this.isVisible = job.world_size > 0;
    this.attempt = number(job.attempt) ?? 0;
    this.size = number(job.world_size) ?? 0;
    this.nodes = number(job.nodes) ?? 0;
    this.command = list(job.command).map(word).join(' ');
    const ranks = object(job.ranks);
    this.ranks = ['waiting', 'running', 'ended', 'failed'].filter((state) => ranks[state] > 0)
      .map((state) => `${number(ranks[state])} ${state}`).join(', ');
    const isHere = host === 'localhost';
    this.more = !this.isVisible || !isPlain(this.id) || !isPlain(host) ? '' : `dtrain status ${isHere ? '' : `-H ${host} `}${job.id}`;
  }
}
