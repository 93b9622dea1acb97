// SPDX-License-Identifier: Apache-2.0
// Words for people. Nothing here touches the document.

// Text of others, with every character that does not show itself made visible by its number. (Few systems
// have a font with pictures of control characters.)
function clean(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => {
    const code = c.charCodeAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u${code.toString(16).padStart(4, '0')}`;
  });
}

function plural(n, word) {
  return `${n.toLocaleString('en')} ${word}${n === 1 ? '' : 's'}`;
}

// "31 ms", "0.31 s", "12 s", "3 min 05 s", "1 h 02 min", "2 d 3 h"
function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 0.0005) return '< 1 ms';
  if (s < 0.0995) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(2)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const pad = (n) => String(Math.floor(n)).padStart(2, '0');
  if (s < 3600) return `${Math.floor(s / 60)} min ${pad(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${pad((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const wholeSeconds = (seconds) => (seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds));

// What a rank can be, as /columns has it: letter, name, and the word for many.
const kStates = {
  w: { letter: 'W', color: 'waiting', one: 'waiting to start', many: 'waiting' },
  r: { letter: 'R', color: 'running', one: 'running', many: 'running' },
  c: { letter: 'C', color: 'inside', one: 'in one collective for over 5 s', many: 'held in a collective' },
  h: { letter: 'H', color: 'halted', one: 'halted: its process is stopped, or waits in the kernel', many: 'halted' },
  d: { letter: 'D', color: 'done', one: 'done', many: 'done' },
  f: { letter: 'F', color: 'failed', one: 'failed', many: 'failed' },
  k: { letter: 'K', color: 'stopped', one: 'ended by dtrain', many: 'ended by dtrain' },
  l: { letter: 'L', color: 'lost', one: 'lost with its node', many: 'lost' },
};
const kUnknown = { letter: '?', color: 'waiting', one: 'unknown', many: 'unknown' };
const stateOf = (letter) => (Object.hasOwn(kStates, letter) ? kStates[letter] : kUnknown);

function exitText(exit) {
  if (exit === undefined) return '';
  return exit < 0 ? `signal ${-exit}` : `exit code ${exit}`;
}

const kNodeStates = { c: 'connecting', j: 'joined', s: 'silent', g: 'lost', e: 'left' };

// The job in words: what it does, and how good that is ("good", "bad", "busy", "").
function headline(job) {
  if (job.end) {
    const { exit_code: code, verdict } = job.end;
    if (code === 0) return ['Succeeded', ''];
    if (verdict === 'signal') return [`Stopped (exit code ${code})`, ''];
    if (verdict === 'time_limit') return [`Ended by its time limit (exit code ${code})`, 'bad'];
    return [`Failed (exit code ${code})`, 'bad'];
  }
  const failed = job.counts.failed;
  const count = (letter) => job.ranks.state.split(letter).length - 1;
  switch (job.state) {
    case 'connecting': return ['Connecting to the nodes', 'busy'];
    case 'probing': return ['Checking the network', 'busy'];
    case 'holding': return ['Reserving ports', 'busy'];
    case 'starting': return ['Starting the workers', 'busy'];
    case 'running':
      if (failed > 0) return [`Running; ${plural(failed, 'rank')} failed`, 'bad'];
      if (count('h') > 0) return [`Running; ${plural(count('h'), 'rank')} halted`, 'busy'];
      if (count('c') > 0) return [`Running; ${plural(count('c'), 'rank')} held in a collective`, 'busy'];
      return ['Running', 'good'];
    case 'stopping': return failed > 0 ? [`Stopping: ${plural(failed, 'rank')} failed`, 'bad'] : ['Stopping', 'busy'];
    case 'restarting': return [`Restarting${job.nextIn > 0 ? ` in ${job.nextIn < 60 ? `${Math.ceil(job.nextIn)} s` : duration(job.nextIn)}` : ''}`, 'bad'];
    case 'finished': return ['Finished', ''];
    default: return ['Unknown', ''];
  }
}
