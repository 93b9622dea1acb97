// SPDX-License-Identifier: Apache-2.0
// The page begins. What it shows is said by the server that it comes from, in the shell.

app.view = document.documentElement.dataset.shows === 'node' ? nodeView : jobView;
// Ages grow though nothing comes.
setInterval(() => { if (app.view.isKnown && (isSilent() || app.view.isOver)) update(); }, 1000);
document.addEventListener('visibilitychange', () => { if (!document.hidden) wake(); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { if (app.view.isKnown) update(); });
// A link that is pasted into this tab may be another job's, and the page another build's.
addEventListener('hashchange', () => { if (location.hash.startsWith('#t=')) location.reload(); });
start(takeToken());
