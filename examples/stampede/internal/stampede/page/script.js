"use strict";

// The server sends all that the page shows after each change. The page keeps nothing but what a
// slider is being moved to.

const byId = (id) => document.getElementById(id);

// write changes only what differs, so that a screen reader is not told the same again.
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const plural = (n, one, many) => `${n} ${n === 1 ? one : many}`;
const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

async function control(change) {
  try {
    const reply = await fetch("controls", { method: "POST", body: JSON.stringify(change) });
    if (!reply.ok) write(byId("problem"), await reply.text());
  } catch {
    write(byId("problem"), lost);
  }
}

// slider returns a function that shows the value of the view, unless the user is moving the slider.
function slider(id, format) {
  const input = byId(id), shown = byId(`${id}-value`);
  let moved = 0, timer = 0;
  const show = () => {
    write(shown, format(Number(input.value)));
    input.setAttribute("aria-valuetext", format(Number(input.value)));
  };
  input.addEventListener("input", () => {
    moved = Date.now();
    show();
    clearTimeout(timer);
    timer = setTimeout(() => control({ [id]: Number(input.value) }), 100);
  });
  return (value, most) => {
    if (Date.now() - moved < 1000) return;
    input.max = most;
    input.value = value;
    show();
  };
}

const showGoroutines = slider("goroutines", String);
const showLoad = slider("load", seconds);

let playing = true;
byId("play").addEventListener("click", () => control({ playing: !playing }));
byId("another").addEventListener("click", () => control({ another: true }));
byId("controls").addEventListener("submit", (event) => event.preventDefault());

// card makes the part of the page for a strategy, and returns a function that shows its view.
function card(strategy) {
  const root = byId("card").content.cloneNode(true).firstElementChild;
  const part = (selector) => root.querySelector(selector);
  const title = part("h2");
  title.id = `strategy-${document.querySelectorAll("#strategies h2").length}`;
  root.setAttribute("aria-labelledby", title.id);
  write(title, strategy.name);
  write(part(".about"), strategy.about);
  const rows = strategy.processes.map((_, i) => {
    const row = byId("process").content.cloneNode(true).firstElementChild;
    write(row.querySelector(".name"), `process ${i + 1}`);
    part(".processes").append(row);
    return row;
  });
  byId("strategies").append(root);

  return (s) => {
    root.classList.toggle("running", s.running);
    s.processes.forEach((process, i) => showProcess(rows[i], process, s));
    const soFar = s.processes.reduce((sum, process) => sum + process.queries, 0);
    const last = s.last;
    write(part(".queries dd"), last ? String(last.queries) : s.running ? String(soFar) : "–");
    write(part(".last dd"), last ? seconds(last.lastMs) : "–");
    write(part(".requests dd"), last ? String(last.requests) : "–");
    showHistory(part(".history"), s.history);
    write(part("figcaption"), s.history.length ? history(s.history.map((f) => f.queries)) : "no rounds yet");
  };
}

function showProcess(row, process, s) {
  const loading = Math.min(process.loading, process.waiting);
  const width = (n) => `${(100 * n) / s.callers}%`;
  row.querySelector(".loading").style.width = loading ? `max(4px, ${width(loading)})` : "0";
  row.querySelector(".waiting").style.width = width(process.waiting - loading);
  write(row.querySelector(".count"), s.running
    ? `${process.waiting} waiting, ${plural(process.loading, "query", "queries")}`
    : plural(process.queries, "query", "queries"));
}

// showHistory draws a column for each round, as high as the logarithm of its queries.
function showHistory(box, rounds) {
  while (box.children.length < rounds.length) box.append(document.createElement("span"));
  rounds.forEach((f, i) => {
    box.children[i].style.height = `${Math.min(100, 10 + 30 * Math.log10(Math.max(1, f.queries)))}%`;
  });
}

function history(queries) {
  const least = Math.min(...queries), most = Math.max(...queries);
  const range = least === most ? String(most) : `${least} to ${most}`;
  return `${range} a round in ${plural(queries.length, "round", "rounds")}`;
}

let cards = [];

function show(view) {
  playing = view.playing;
  write(byId("play"), view.playing ? "Pause" : "Play");
  byId("another").disabled = view.playing;
  showGoroutines(view.goroutines, view.maxGoroutines);
  showLoad(view.load, view.maxLoad);
  const processes = view.strategies[0].processes.length;
  write(byId("callers"), `${plural(processes * view.goroutines, "caller", "callers")} in ${plural(processes, "process", "processes")}`);
  write(byId("backend"), view.backend);
  write(byId("problem"), view.problem);
  if (cards.length === 0) cards = view.strategies.map(card);
  view.strategies.forEach((s, i) => cards[i](s));
  if (view.round > 0 && !view.strategies.some((s) => s.running || !s.last)) {
    write(byId("summary"), `Round ${view.round}, database queries: ` +
      view.strategies.map((s) => `${s.name} ${s.last.queries}`).join(", ") + ".");
  }
}

const lost = "The program does not answer. The page tries to connect again.";
const events = new EventSource("events");
events.onmessage = (event) => show(JSON.parse(event.data));
events.onerror = () => write(byId("problem"), lost);
