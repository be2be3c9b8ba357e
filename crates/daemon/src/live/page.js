// The live page: shows updates as they arrive. It sends nothing but its requests for them.
"use strict";

const CELLS = 1200; // 30 s
const DECISIONS_MAX = 300;

const byId = (id) => document.getElementById(id);
const lanes = new Map(); // by pid, start time and device
const devices = new Map(); // with those that have gone
let updates = 0;

/** An element with a text and a class. */
function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

/** A time in a readable unit. */
function time(us) {
  if (us == null) return "";
  if (us < 1000) return `${us} \u00b5s`;
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 1 : 0)} ms`;
  return `${(us / 1e6).toFixed(us < 1e7 ? 1 : 0)} s`;
}

const upTo = (us) => (us == null ? "" : `\u2264 ${time(us)}`);
const percent = (share) => (share == null ? "" : `${Math.round(100 * share)} %`);
const clock = (ms, end) => new Date(Date.now() - (end - ms)).toTimeString().slice(0, 8);

/** Fills a table. A column is a title, a function of a row, a class, and a function for another. */
function fill(id, columns, rows, rowClass = () => "") {
  const head = element("tr");
  for (const [title, , style] of columns) head.append(element("th", title, style));
  const body = element("tbody");
  for (const row of rows) {
    const line = element("tr", "", rowClass(row));
    for (const [title, read, style = "", styleOf = () => ""] of columns) {
      const cell = element("td", read(row), `${style} ${styleOf(row)}`.trim());
      cell.dataset.head = title;
      line.append(cell);
    }
    body.append(line);
  }
  const heads = element("thead");
  heads.append(head);
  byId(id).replaceChildren(heads, body);
}

const PROCESSES = [
  ["process", (task) => task.name],
  ["pid", (task) => task.pid, "number"],
  ["uid", (task) => (task.uid === 0xffffffff ? "unknown" : task.uid), "number"],
  ["priority", (task) => task.priority ?? (task.is_normal ? "normal" : "\u2013"), "number",
    (task) => (task.priority >= 8 ? "high" : "")],
  ["state", (task) => task.state, "", (task) => task.state],
  ["share", (task) => percent(task.share), "number"],
  ["preempts", (task) => task.preempts, "number"],
  ["pre/s", (task) => task.preempts_per_s.toFixed(1), "number"],
  ["waiting", (task) => (task.waiting_ms ? time(1000 * task.waiting_ms) : ""), "number"],
  ["why", (task) => task.why],
];

const GPUS = [
  ["GPU", (gpu) => `${gpu.id} ${gpu.kind}`],
  ["UUID", (gpu) => gpu.uuid],
  ["state", (gpu) => (gpu.gone ? "no longer controlled" : "controlled")],
  ["preempts", (gpu) => gpu.preempts, "number"],
  ["preempt p50", (gpu) => time(gpu.preempt_us_p50), "number"],
  ["p99", (gpu) => time(gpu.preempt_us_p99), "number"],
  ["faults", (gpu) => gpu.faults, "number"],
];

const WAITS = [
  ["class", (group) => group.class],
  ["rule", (group) => group.rule],
  ["waits", (group) => group.waits, "number"],
  ["wait p50", (group) => upTo(group.wait_us_p50), "number"],
  ["wait p99", (group) => upTo(group.wait_us_p99), "number"],
  ["preempts", (group) => group.preempts, "number"],
  ["preempt p99", (group) => upTo(group.preempt_us_p99), "number"],
];

/** The lane of a process on a GPU, made where it is missing. */
function laneOf({ pid, start, device }) {
  const key = `${pid} ${start} ${device}`;
  if (!lanes.has(key)) {
    const row = element("div", "", "lane");
    const canvas = element("canvas");
    canvas.setAttribute("role", "img");
    row.append(element("span"), canvas);
    lanes.set(key, { row, canvas, pid, start, device, cells: [], end: 0 });
  }
  return lanes.get(key);
}

/** Adds cells, the last of which ends before the cell `end`. */
function addCells(lane, cells, end) {
  const missing = Math.min(CELLS, Math.max(0, end - cells.length - lane.end));
  lane.cells.push(...new Array(lane.end ? missing : 0).fill(0), ...cells);
  lane.cells.splice(0, lane.cells.length - CELLS);
  lane.end = end;
}

function draw(lane) {
  const { canvas, cells } = lane;
  const ratio = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * ratio);
  const height = Math.round(canvas.clientHeight * ratio);
  if (!width || !height) return;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  context.fillStyle = style.getPropertyValue(lane.isHigh ? "--run" : "--waiting");
  const cell = width / CELLS;
  cells.forEach((part, index) => {
    if (part === 0) return;
    const from = Math.floor((CELLS - cells.length + index) * cell);
    const bar = Math.ceil((height * part) / 100);
    context.fillRect(from, height - bar, Math.max(1, Math.ceil(cell)), bar);
  });
}

function showLanes(update) {
  if (update.whole) lanes.clear();
  for (const { cells, ...key } of update.lanes) addCells(laneOf(key), cells, update.end);
  for (const [key, lane] of lanes) {
    if (lane.end < update.end) addCells(lane, [], update.end);
    const task = update.tasks.find(({ pid, start }) => pid === lane.pid && start === lane.start);
    if (!task && !lane.cells.some((part) => part > 0)) {
      lanes.delete(key);
      continue;
    }
    lane.name = task?.name ?? lane.name ?? "a process that has ended";
    lane.isHigh = task ? task.priority >= 8 : lane.isHigh;
    const recent = lane.cells.slice(-40);
    const sum = recent.reduce((sum, part) => sum + part, 0);
    const share = percent(sum / 100 / Math.max(1, recent.length));
    const label = `${lane.name} (${lane.pid}) on GPU ${lane.device}: ${share} of the last second`;
    const note = element("small", ` ${lane.pid}, GPU ${lane.device}`);
    lane.row.firstChild.replaceChildren(`${share} ${lane.name}`, note);
    lane.row.firstChild.title = label;
    lane.canvas.setAttribute("aria-label", label);
  }
  byId("lanes").replaceChildren(...[...lanes.values()].map((lane) => lane.row));
  lanes.forEach(draw);
}

function showGpus(update) {
  if (update.whole) devices.clear();
  for (const gpu of devices.values()) gpu.gone = true;
  for (const gpu of update.devices) devices.set(gpu.id, gpu);
  fill("gpus", GPUS, devices.values(), (gpu) => (gpu.gone ? "gone" : ""));
}

function showDecisions(update) {
  const list = byId("decisions");
  if (update.whole) list.replaceChildren();
  for (const decision of update.decisions) {
    const who = decision.pid ? `${decision.name} (${decision.pid})` : "";
    const took = decision.took_us ? `, ${time(decision.took_us)}` : "";
    const line = element("li");
    line.append(
      element("time", clock(decision.at_ms, update.end * update.cell_ms)),
      element("b", decision.kind),
      ` ${who}${took}${decision.reason ? `: ${decision.reason}` : ""}`,
    );
    list.prepend(line);
  }
  while (list.childElementCount > DECISIONS_MAX) list.lastChild.remove();
  const leftOut = update.decisions_left_out;
  byId("left-out").hidden = !leftOut;
  byId("left-out").textContent = `${leftOut} more in the last half second; \`gpreempt events\` has all.`;
}

function showNotices(notices) {
  byId("notices").hidden = notices.length === 0;
  byId("notices").replaceChildren(...notices.map((notice) => element("li", notice)));
}

function show(update) {
  updates += 1;
  document.documentElement.dataset.updates = updates;
  if (update.lost) {
    byId("summary").textContent = "no connection to the service";
    for (const gpu of devices.values()) gpu.gone = true;
    fill("gpus", GPUS, devices.values(), () => "gone");
    return showNotices([update.lost]);
  }
  const count = update.tasks.length + update.tasks_left_out;
  const left = update.tasks_left_out ? `, ${update.tasks_left_out} not shown` : "";
  byId("summary").textContent =
    `${update.private ?? "gpreemptd"} ${update.version}, policy ${update.policy}, ` +
    `${count} ${count === 1 ? "process" : "processes"}${left}, up ${time(1e6 * update.uptime_s)}`;
  showLanes(update);
  fill("processes", PROCESSES, update.tasks);
  showGpus(update);
  fill("waits", WAITS, update.waits);
  showDecisions(update);
  const gone = [...devices.values()].filter((gpu) => gpu.gone);
  const sentences = gone.map((gpu) => `GPU ${gpu.id} (${gpu.uuid}) is no longer controlled.`);
  showNotices([...sentences, ...update.notices]);
}

const source = new EventSource("/updates");
source.onmessage = (event) => show(JSON.parse(event.data));
source.onerror = () => {
  byId("summary").textContent = "no connection; trying again every two seconds";
};
window.addEventListener("resize", () => lanes.forEach(draw));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => lanes.forEach(draw));
