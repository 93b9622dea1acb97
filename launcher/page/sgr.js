// SPDX-License-Identifier: Apache-2.0
// Colours of terminal output. Of all escape sequences only SGR means anything here; the others are
// left out, so that what remains is text. Nothing becomes markup: spans() gives strings and names of
// classes, and who draws them sets textContent.

const kPlain = Object.freeze({ fg: -1, inverse: false, bold: false, dim: false, italic: false, underline: false, strike: false });

// Eight colours, which are legible on either ground, stand for all.
function nearest(r, g, b) {
  const high = Math.max(r, g, b), low = Math.min(r, g, b);
  if (high - low < 48) return high > 200 || high < 80 ? 0 : 7;
  const limit = (high + low) / 2;
  return (r > limit ? 1 : 0) + (g > limit ? 2 : 0) + (b > limit ? 4 : 0);
}

function indexed(n) {
  if (n < 16) return n % 8;
  if (n >= 232) return nearest(8 + (n - 232) * 10, 8 + (n - 232) * 10, 8 + (n - 232) * 10);
  const level = (v) => (v === 0 ? 0 : 55 + v * 40);
  const m = n - 16;
  return nearest(level(Math.floor(m / 36)), level(Math.floor(m / 6) % 6), level(m % 6));
}

function applySgr(state, parameters) {
  const codes = parameters === '' ? [0] : parameters.split(/[;:]/).map(Number);
  let next = { ...state };
  for (let i = 0; i < codes.length; ++i) {
    const code = codes[i];
    if (code === 38 || code === 48) {
      const kind = codes[i + 1];
      const color = kind === 5 ? indexed(codes[i + 2] || 0) : nearest(codes[i + 2] || 0, codes[i + 3] || 0, codes[i + 4] || 0);
      i += kind === 5 ? 2 : 4;
      if (code === 38) next.fg = color;
      else next.inverse = color !== 0;
    } else if (code === 0) next = { ...kPlain };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.underline = true;
    else if (code === 7) next.inverse = true;
    else if (code === 9) next.strike = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.underline = false;
    else if (code === 27 || code === 49) next.inverse = false;
    else if (code === 29) next.strike = false;
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code === 39) next.fg = -1;
    else if (code > 40 && code <= 47) next.inverse = true;
    else if (code >= 90 && code <= 97) next.fg = code - 90;
    else if (code > 100 && code <= 107) next.inverse = true;
  }
  return next;
}

// CSI; OSC, DCS, SOS, PM and APC with all that they carry, ended or not; two-byte escapes; C1 forms.
const kEscape = /(?:\u001b\[|\u009b)([0-9;:<=>?]*)([ -/]*)([@-~]?)|(?:\u001b[\]PX^_]|[\u0090\u0098\u009d\u009e\u009f])[^\u0007\u001b\u009c]*(?:\u0007|\u001b\\|\u009c)?|\u001b[ -/]*[0-~]?/g;

// One line: its pieces [{text, name}] and the state after it.
function spans(line, state) {
  const pieces = [];
  const add = (text) => {
    if (text === '') return;
    const names = [];
    if (state.fg >= 0) names.push(`f${state.fg}`);
    if (state.inverse) names.push('b');
    for (const each of ['bold', 'dim', 'italic', 'underline', 'strike']) if (state[each]) names.push(each);
    pieces.push({ text: clean(text), name: names.join(' ') });
  };
  if (!/[\u001b\u0090-\u009f]/.test(line)) {
    add(line);
    return { pieces, state };
  }
  let at = 0;
  for (const match of line.matchAll(kEscape)) {
    add(line.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[3] === 'm' && match[2] === '' && /^[0-9;:]*$/.test(match[1])) state = applySgr(state, match[1]);
  }
  add(line.slice(at));
  return { pieces, state };
}
