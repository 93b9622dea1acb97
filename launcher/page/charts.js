// SPDX-License-Identifier: Apache-2.0
// How the GPUs have been over the last hour: of all of them the least, the median and the most in each bin, and with
// few of them a line each.

const kGpuBins = 360;
const kGpuLines = 8;
const kChartHeight = 72;

// `scale`: to what is shown; `least`: how far the axis goes at least; `most`: of the axis, where the GPUs say it.
const kMetrics = [
  { name: 'utilisation_percent', title: 'Utilisation', unit: '%', scale: 1, least: 100 },
  { name: 'memory_used_mib', title: 'Memory', unit: 'GiB', scale: 1 / 1024, least: 1, most: 'total' },
  { name: 'power_watts', title: 'Power', unit: 'W', scale: 1, least: 100 },
  { name: 'temperature_celsius', title: 'Temperature', unit: '°C', scale: 1, least: 100 },
];

// What was heard of a bin: {low, middle, high}, or null.
function spread(gpus, metric, bin) {
  const values = [];
  for (const gpu of gpus) {
    const value = gpu[metric.name][bin];
    if (typeof value === 'number') values.push(value * metric.scale);
  }
  if (values.length === 0) return null;
  values.sort((a, b) => a - b);
  return { low: values[0], middle: values[values.length >> 1], high: values[values.length - 1] };
}

const shown = (value) => (value < 10 && value % 1 !== 0 ? value.toFixed(1) : String(Math.round(value)));

function drawChart(canvas, gpus, metric, spreads, width) {
  const context = prepare(canvas, width, kChartHeight);
  let most = metric.least;
  for (const gpu of metric.most ? gpus : []) most = Math.max(most, (gpu[metric.most] || 0) * metric.scale);
  for (const each of spreads) if (each) most = Math.max(most, each.high);
  const bins = spreads.length, wide = width / kGpuBins;
  const x = (bin) => width - (bins - 1 - bin) * wide - 1;
  const y = (value) => kChartHeight - 1 - value / most * (kChartHeight - 3);
  context.strokeStyle = colorOf('line');
  context.strokeRect(0.5, 0.5, width - 1, kChartHeight - 1);
  context.fillStyle = colorOf('done');
  for (let bin = 0; bin < bins; ++bin) {
    if (!spreads[bin]) continue;
    const top = y(spreads[bin].high), bottom = y(spreads[bin].low);
    context.fillRect(x(bin) - wide, top, wide + 0.5, Math.max(1, bottom - top));
  }
  // A gap where nothing was heard.
  const line = (color, thick, valueAt) => {
    context.strokeStyle = colorOf(color);
    context.lineWidth = thick;
    context.beginPath();
    let isOn = false;
    for (let bin = 0; bin < bins; ++bin) {
      const value = valueAt(bin);
      if (typeof value === 'number') {
        if (isOn) context.lineTo(x(bin), y(value));
        else context.moveTo(x(bin) - 1, y(value));
        context.lineTo(x(bin), y(value));
      }
      isOn = typeof value === 'number';
    }
    context.stroke();
  };
  if (gpus.length <= kGpuLines && gpus.length > 1) {
    for (const gpu of gpus) line('quiet', 0.5, (bin) => (typeof gpu[metric.name][bin] === 'number' ? gpu[metric.name][bin] * metric.scale : null));
  }
  line('link', 1.5, (bin) => (spreads[bin] ? spreads[bin].middle : null));
}

const spreadsOf = (gpus, metric) => Array.from({ length: gpus[0][metric.name].length }, (_, bin) => spread(gpus, metric, bin));

function Chart({ gpus, metric, spreads }) {
  const box = useRef(null), canvas = useRef(null);
  const width = useWidth(box);
  const last = spreads.findLast((each) => each !== null);
  useEffect(() => { if (width > 0) drawChart(canvas.current, gpus, metric, spreads, width); });
  const range = gpus.length > 1 ? `, ${shown(last.low)} to ${shown(last.high)}` : '';
  return html`
    <figure class="chart" ref=${box}>
      <figcaption>${metric.title} <span class="quiet number">${shown(last.middle)} ${metric.unit}${range}</span></figcaption>
      <canvas ref=${canvas} aria-hidden="true"></canvas>
    </figure>`;
}

function Gpus({ job }) {
  const gpus = job.gpus.list;
  // Those that any GPU tells.
  const charts = kMetrics.map((metric) => ({ metric, spreads: spreadsOf(gpus, metric) })).filter(({ spreads }) => spreads.some((each) => each !== null));
  if (charts.length === 0) return null;
  return html`
    <section class="gpus" aria-label="GPUs">
      <div class="bar"><h2>GPUs</h2><span class="quiet">${plural(gpus.length, 'GPU')}${gpus.length > 1 ? ', median, least to most' : ''}; the last hour</span></div>
      <div class="charts">${charts.map((each) => html`<${Chart} key=${each.metric.name} gpus=${gpus} ...${each} />`)}</div>
    </section>`;
}
