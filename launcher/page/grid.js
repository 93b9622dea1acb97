// SPDX-License-Identifier: Apache-2.0
// The rank grid: one canvas, a cell for each rank, ranks of a node side by side. The canvas says
// nothing to a screen reader; the listbox around it has the rank under the cursor as its option.

// Of the largest that fits into this height.
const kGridHeight = 380;
const kCells = [
  { width: 38, height: 26, gap: 3, label: 15, text: 'number' },
  { width: 22, height: 22, gap: 2, label: 14, text: 'letter' },
  { width: 16, height: 16, gap: 2, label: 0, text: 'letter' },
  { width: 12, height: 12, gap: 1, label: 0, text: 'letter' },
  { width: 9, height: 9, gap: 1, label: 0, text: '' },
  { width: 7, height: 7, gap: 1, label: 0, text: '' },
  { width: 5, height: 5, gap: 1, label: 0, text: '' },
];

// Where everything is: {cell, height, at: [x, y] by rank, labels}. Nodes flow like words.
function layOut(job, width) {
  const groups = [];
  const size = job.ranks.state.length;
  for (let rank = 0; rank < size; ++rank) {
    const node = job.ranks.node[rank];
    const last = groups[groups.length - 1];
    if (last && last.node === node) last.ranks.push(rank);
    else groups.push({ node, ranks: [rank] });
  }
  let plan;
  for (const cell of kCells) {
    plan = place(job, groups, cell, width);
    if (plan.height <= kGridHeight) break;
  }
  return plan;
}

function place(job, groups, cell, width) {
  const at = [], labels = [];
  const step = cell.width + cell.gap, rise = cell.height + cell.gap;
  const apart = Math.max(4, Math.round(cell.width / 3));
  const perLine = Math.max(1, Math.floor((width + cell.gap) / step));
  let x = 0, y = cell.label, line = rise;
  for (const { node, ranks } of groups) {
    const wide = Math.min(ranks.length, perLine) * step - cell.gap;
    const text = cell.label > 0 && job.nodes.host[node] !== undefined ? clean(job.nodes.host[node]) : '';
    const least = text === '' ? 0 : Math.min(text.length, 14) * 7;
    if (x > 0 && x + Math.max(wide, least) > width) {
      x = 0;
      y += line + cell.label + (cell.label > 0 ? 6 : cell.gap);
      line = rise;
    }
    if (text !== '') labels.push({ x, y: y - 4, text, width: Math.max(wide, least), node });
    ranks.forEach((rank, i) => {
      at[rank] = [x + (i % perLine) * step, y + Math.floor(i / perLine) * rise];
    });
    line = Math.max(line, Math.ceil(ranks.length / perLine) * rise);
    x += Math.max(wide, least) + apart;
  }
  return { cell, at, labels, width, height: groups.length === 0 ? 0 : y + line };
}

const colorOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Sized for the screen's pixels; everything after is in those of CSS.
function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * scale)), h = Math.max(1, Math.round(height * scale));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function drawGrid(canvas, job, plan, marked, selected) {
  const context = prepare(canvas, plan.width, plan.height + 2);
  const { cell } = plan;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  context.font = `600 ${cell.text === 'number' ? 12 : Math.min(12, cell.height - 3)}px ui-monospace, Menlo, Consolas, monospace`;
  // All of a colour one after the other: changing it is what costs.
  for (const [letter, state] of Object.entries(kStates)) {
    const ranks = [];
    for (let rank = 0; rank < plan.at.length; ++rank) if (job.ranks.state[rank] === letter) ranks.push(rank);
    if (ranks.length === 0) continue;
    context.fillStyle = colorOf(state.color);
    context.beginPath();
    for (const rank of ranks) {
      const [x, y] = plan.at[rank];
      if (cell.width > 12) context.roundRect(x, y, cell.width, cell.height, 3);
      else context.rect(x, y, cell.width, cell.height);
    }
    context.fill();
    context.fillStyle = context.strokeStyle = colorOf(`${state.color}-text`);
    const quiet = letter === 'r' || letter === 'd';
    for (const rank of ranks) {
      const [x, y] = plan.at[rank];
      if (cell.text === 'number') {
        context.fillText(quiet ? String(rank) : `${state.letter} ${rank}`, x + cell.width / 2, y + cell.height / 2 + 1, cell.width - 4);
      } else if (cell.text === 'letter') {
        context.fillText(state.letter, x + cell.width / 2, y + cell.height / 2 + 0.5);
      } else if (letter === 'f' || letter === 'l') {  // not by colour alone
        context.beginPath();
        context.moveTo(x + 1, y + 1);
        context.lineTo(x + cell.width - 1, y + cell.height - 1);
        context.moveTo(x + cell.width - 1, y + 1);
        context.lineTo(x + 1, y + cell.height - 1);
        context.stroke();
      }
    }
  }
  context.textAlign = 'left';
  context.textBaseline = 'alphabetic';
  context.font = '11.5px system-ui, sans-serif';
  for (const label of plan.labels) {
    const state = job.nodes.state[label.node];
    context.fillStyle = colorOf(state === 's' || state === 'g' ? 'bad' : 'quiet');
    const told = state === 's' || state === 'g' || (state === 'e' && job.state === 'running');
    const note = told ? ` (${kNodeStates[state]})` : '';
    context.fillText(fit(context, label.text + note, label.width), label.x, label.y);
  }
  const frame = (rank, color, wide) => {
    if (plan.at[rank] === undefined) return;
    context.strokeStyle = colorOf(color);
    context.lineWidth = wide;
    context.strokeRect(plan.at[rank][0], plan.at[rank][1], cell.width, cell.height);
  };
  if (marked !== selected) frame(marked, 'quiet', 1.5);
  frame(selected, 'focus', 2);
}

function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) --end;
  return `${text.slice(0, end)}…`;
}

function rankAt(plan, x, y) {
  const { cell } = plan;
  for (let rank = 0; rank < plan.at.length; ++rank) {
    const [left, top] = plan.at[rank];
    if (x >= left && x < left + cell.width + cell.gap && y >= top && y < top + cell.height + cell.gap) return rank;
  }
  return -1;
}

// The nearest cell above (-1) or below (1).
function vertical(plan, from, sense) {
  const [x, y] = plan.at[from];
  let best = from, line = Infinity, away = Infinity;
  plan.at.forEach(([left, top], rank) => {
    const distance = (top - y) * sense;
    if (distance <= 0 || distance > line) return;
    if (distance < line || Math.abs(left - x) < away) {
      line = distance;
      away = Math.abs(left - x);
      best = rank;
    }
  });
  return best;
}

// The width of an element, as it changes.
function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver((entries) => setWidth(Math.floor(entries[0].contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

function Grid({ job, selected, onSelect }) {
  const box = useRef(null), canvas = useRef(null), kept = useRef({});
  const [cursor, setCursor] = useState(-1);  // by keyboard
  const [under, setUnder] = useState(-1);    // by mouse
  const width = useWidth(box);
  const key = `${width} ${job.shape} ${job.ranks.state.length}`;
  if (kept.current.key !== key && width > 0) kept.current = { key, plan: layOut(job, width) };
  const { plan } = kept.current;
  const marked = under >= 0 ? under : cursor >= 0 ? cursor : selected;
  useEffect(() => {
    if (plan) drawGrid(canvas.current, job, plan, marked, selected);
  });
  const find = (event) => {
    const frame = canvas.current.getBoundingClientRect();
    return plan ? rankAt(plan, event.clientX - frame.left, event.clientY - frame.top) : -1;
  };
  const onKey = (event) => {
    if (!plan || plan.at.length === 0) return;
    const from = cursor >= 0 ? cursor : Math.max(0, selected);
    const last = plan.at.length - 1;
    const to = {
      ArrowLeft: () => Math.max(0, from - 1), ArrowRight: () => Math.min(last, from + 1),
      ArrowUp: () => vertical(plan, from, -1), ArrowDown: () => vertical(plan, from, 1), Home: () => 0, End: () => last,
    }[event.key];
    if (to) setCursor(to());
    else if (event.key === 'Enter' || event.key === ' ') onSelect(from);
    else return;
    setUnder(-1);
    event.preventDefault();
  };
  const text = marked >= 0 && marked < job.ranks.state.length ? job.describe(marked) : '';
  return html`
    <div class="grid" role="listbox" tabindex="0" aria-label="Ranks; arrow keys move, Enter shows a rank's output"
         aria-activedescendant=${text === '' ? null : 'marked-rank'} ref=${box} onKeyDown=${onKey}
         onMouseMove=${(event) => setUnder(find(event))} onMouseLeave=${() => setUnder(-1)} onBlur=${() => setCursor(-1)}
         onClick=${(event) => { const rank = find(event); if (rank >= 0) onSelect(rank); }}>
      <canvas ref=${canvas} aria-hidden="true"></canvas>
      ${text !== '' && html`<div id="marked-rank" class="hidden" role="option" aria-selected=${marked === selected ? 'true' : 'false'}>${text}</div>`}
    </div>
    <p class="now" aria-hidden="true">${text || html`<span class="quiet">No ranks yet.</span>`}</p>`;
}
