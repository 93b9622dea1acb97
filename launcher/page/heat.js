// SPDX-License-Identifier: Apache-2.0
// Who comes late: ranks × bins of ten seconds. The server gives a letter for each: by how much of the
// time this rank waited less for others than the rank that waited most; who waits least is waited for.

const kLevels = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
const kHottest = 32;  // of 64: half of the time
const kNoise = 4;     // below it nobody is late

const lateness = (letter) => kLevels.indexOf(letter);  // -1: no data

function mix(from, to, share) {
  const read = (color) => [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  const a = read(from), b = read(to);
  return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * share)).join(' ')})`;
}

function palette() {
  const cold = colorOf('cold'), hot = colorOf('hot');
  return Array.from({ length: kHottest + 1 }, (_, i) => mix(cold, hot, Math.max(0, i - kNoise) / (kHottest - kNoise)));
}

function drawHeat(canvas, job, width, height) {
  const context = prepare(canvas, width, height);
  const colors = palette(), ranks = job.ranks.state.length;
  const lines = Math.min(ranks, height), wide = width / kMostBins;
  job.late.rows.forEach((row, bin) => {
    const x = width - (job.late.rows.length - bin) * wide;
    for (let line = 0; line < lines; ++line) {
      // Where several ranks share a line, the latest of them.
      let level = -1;
      const end = Math.max(Math.ceil((line + 1) * ranks / lines), Math.floor(line * ranks / lines) + 1);
      for (let rank = Math.floor(line * ranks / lines); rank < end; ++rank) level = Math.max(level, lateness(row[rank]));
      if (level < 0) continue;
      context.fillStyle = colors[Math.min(level, kHottest)];
      context.fillRect(x, line * height / lines, Math.ceil(wide) - (wide > 4 ? 1 : 0), Math.max(1, Math.ceil(height / lines) - (height / lines > 4 ? 1 : 0)));
    }
  });
}

function Heat({ job, onSelect }) {
  const box = useRef(null), canvas = useRef(null), scale = useRef(null);
  const width = useWidth(box);
  const [under, setUnder] = useState(null);
  const ranks = job.ranks.state.length;
  const height = Math.min(Math.max(ranks * 9, 36), 160);
  useEffect(() => {
    if (width > 0) drawHeat(canvas.current, job, width, height);
    const context = prepare(scale.current, 60, 10);
    palette().forEach((color, i, all) => {
      context.fillStyle = color;
      context.fillRect(i * 60 / all.length, 0, 60 / all.length + 1, 10);
    });
  });
  const find = (event) => {
    const frame = canvas.current.getBoundingClientRect();
    const rank = Math.min(ranks - 1, Math.floor((event.clientY - frame.top) / height * ranks));
    const back = Math.floor((frame.right - event.clientX) / (width / kMostBins));
    const row = job.late.rows[job.late.rows.length - 1 - back];
    const level = row === undefined ? -1 : lateness(row[rank]);
    return rank >= 0 && level >= 0 ? { rank, back, level } : null;
  };
  const worst = latest(job);
  const text = under
    ? `rank ${under.rank}, ${wholeSeconds(under.back * job.late.seconds)} ago: late by ${Math.round(under.level / 64 * 100)} % of the time`
    : worst ? `in the last minute rank ${worst.rank} on ${clean(job.hostOf(worst.rank))} was late by ${worst.percent} % of the time`
      : 'in the last minute no rank was late';
  return html`
    <div class="heat" ref=${box}>
      <div class="bar">
        <h2>Late ranks</h2>
        <span class="scale quiet">in step <canvas ref=${scale} aria-hidden="true"></canvas> late by half of the time</span>
      </div>
      <canvas ref=${canvas} aria-hidden="true" onMouseMove=${(event) => setUnder(find(event))} onMouseLeave=${() => setUnder(null)}
              onClick=${(event) => { const found = find(event); if (found) onSelect(found.rank); }}></canvas>
      <div class="ends quiet"><span>10 min ago</span><span>now</span></div>
      <p class="now">${text}</p>
    </div>`;
}

// The rank that the others waited for most, over the last six bins.
function latest(job) {
  const rows = job.late.rows.slice(-6);
  let best = null;
  for (let rank = 0; rank < job.ranks.state.length; ++rank) {
    const levels = rows.map((row) => lateness(row[rank])).filter((level) => level >= 0);
    if (levels.length === 0) continue;
    const percent = Math.round(levels.reduce((a, b) => a + b, 0) / levels.length / 64 * 100);
    if (percent >= 5 && (!best || percent > best.percent)) best = { rank, percent };
  }
  return best;
}
