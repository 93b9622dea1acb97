// SPDX-License-Identifier: Apache-2.0
// What is seen of a node.

function NodePage({ node }) {
  const silent = isSilent();
  const [words, kind] = node.headline;
  document.title = `${node.host} · ${words} · dtrain`;
  return html`
    <header class="top">
      <div class="line">
        <h1 class="state ${silent ? '' : kind}">${node.host}</h1>
        <span>${words}${silent ? `, ${ago(app.answered)} ago` : ''}</span>
        <span class="number age">${silent ? html`<span class="stale">no answer</span>` : html`<span class="live">live</span>`}</span>
      </div>
      <p class="quiet facts">${nodeFacts(node).map((fact, i) => html`${i > 0 && ' · '}<span>${fact}</span>`)}</p>
    </header>
    <${Silence} />
    <main class="node">
      <section class="wide" aria-label="GPUs"><${GpuTable} node=${node} /></section>
      <section class="wide" aria-label="Jobs"><${JobTable} node=${node} /></section>
      <section class="wide" aria-label="Problems"><${Problems} node=${node} /></section>
    </main>`;
}

function nodeFacts(node) {
  const agent = node.isResident ? 'agent' : 'asked by dtrain';
  const since = node.started === null ? '' : `, up for ${wholeSeconds(node.up)}, since ${moment(node.started)}`;
  return [
    `${agent} ${node.version}${since}`,
    node.machine,
    node.cores > 0 && `${plural(node.cores, 'core')}, ${node.freeCores} free`,
    node.memory > 0 && `${gib(node.memory)} GiB of memory, ${gib(node.memoryAvailable)} available`,
    node.load !== null && `load ${node.load.toFixed(2)}`,
    node.driver !== '' && `NVIDIA driver ${node.driver}`,
  ].filter(Boolean);
}

// A column that no GPU tells is left out.
const kGpuColumns = [
  { title: 'Name', of: (gpu) => gpu.name },
  { title: 'Memory', of: (gpu) => (gpu.total > 0 ? `${gib(gpu.used)} of ${gib(gpu.total)} GiB` : '') },
  { title: 'Utilisation', of: (gpu) => (gpu.utilisation === null ? '' : `${gpu.utilisation} %`) },
  { title: 'Temperature', of: (gpu) => (gpu.temperature === null ? '' : `${gpu.temperature} °C`) },
  { title: 'ECC errors', of: (gpu) => (gpu.ecc === null ? '' : gpu.ecc.toLocaleString('en')), mark: (gpu) => (gpu.ecc > 0 ? 'bad-text' : '') },
  { title: 'Last Xid', of: (gpu) => (gpu.xid === null ? '' : String(gpu.xid)), mark: () => 'warn-text' },
];

function GpuTable({ node }) {
  const columns = kGpuColumns.filter((column) => node.gpus.some((gpu) => column.of(gpu) !== ''));
  const isFree = (gpu) => gpu.fault === '' && gpu.holder === '';
  return html`
    <div class="bar"><h2>GPUs</h2>${node.gpus.length > 0 && html`<span class="quiet">${plural(node.gpus.length, 'GPU')}, ${
      node.gpus.filter(isFree).length} free</span>`}</div>
    ${node.gpus.length === 0 ? html`<p class="quiet">${node.gpuError === '' ? 'This node has no GPUs.' : 'It is not known which GPUs this node has.'}</p>`
      : html`<div class="table" tabindex="0" role="region" aria-label="Table of GPUs"><table>
        <caption class="hidden">GPUs, how they are, and what uses them</caption>
        <thead><tr><th scope="col">GPU</th>${columns.map(({ title }) => html`<th scope="col" key=${title}>${title}</th>`)}<th scope="col">Used by</th></tr></thead>
        <tbody>${node.gpus.map((gpu) => html`<tr key=${gpu.uuid}>
          <th scope="row" title=${gpu.uuid}>${gpu.index}</th>
          ${columns.map(({ title, of, mark }) => html`<td key=${title} class=${of(gpu) !== '' && mark ? mark(gpu) : ''}>${of(gpu) || '–'}</td>`)}
          <td class="text">${gpu.users.map((user, i) => html`<div class=${i === 0 && gpu.fault !== '' ? 'bad-text' : ''}>${user}</div>`)}</td></tr>`)}</tbody>
      </table></div>`}`;
}

function JobTable({ node }) {
  const { jobs } = node;
  if (jobs.length === 0) {
    return html`<div class="bar"><h2>Jobs</h2></div>
      <p class="quiet">${node.isResident ? 'No job runs on this node.' : 'Only a resident agent knows which jobs run on this node.'}</p>`;
  }
  return html`
    <div class="bar"><h2>Jobs</h2><span class="quiet">${plural(jobs.length, 'job')}</span></div>
    <div class="table" tabindex="0" role="region" aria-label="Table of jobs"><table>
      <caption class="hidden">Jobs on this node</caption>
      <thead><tr>${['Job', 'Owner', 'State', 'Ranks here', 'Since', 'Cores', 'GPUs'].map((title) => html`<th scope="col" key=${title}>${title}</th>`)}</tr></thead>
      <tbody>${jobs.map((job) => html`<tr key=${job.key}>
        <th scope="row" class="text"><span class="mono">${job.id}</span>${job.command !== '' && html`<div class="mono quiet">${job.command}</div>`}
          ${job.more !== '' && html`<div class="more"><code>${job.more}</code> <${Copy} text=${job.more} label=${`Copy the command that shows ${job.id}`} /></div>`}</th>
        <td>${job.owner}</td>
        <td>${job.state}${job.attempt > 0 && html`<div class="quiet">attempt ${job.attempt}</div>`}</td>
        <td>${job.isVisible ? html`${job.ranks || 'none'}<div class="quiet">of ${job.size} on ${plural(job.nodes, 'node')}</div>` : html`<span class="quiet">not for you to see</span>`}</td>
        <td>${job.since}<div class="quiet">${wholeSeconds(job.seconds + (performance.now() - app.answered) / 1000)}</div></td>
        <td>${job.cpus || '–'}</td>
        <td>${job.gpus || '–'}</td></tr>`)}</tbody>
    </table></div>
    <p class="quiet now">On the machine where a job was launched, <code>dtrain page JOB</code> shows it in a browser.</p>`;
}

function Problems({ node }) {
  return html`
    <div class="bar"><h2>Problems</h2></div>
    ${node.problems.length === 0 ? html`<p class="quiet">None are reported.</p>`
      : html`<ul class="problems">${node.problems.map(([isBad, text]) => html`<li class=${isBad ? 'bad-text' : 'warn-text'}>${text}</li>`)}</ul>`}`;
}
