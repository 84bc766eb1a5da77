// The what-if page: every move of a slider asks the server for the plan, and the newest answer is drawn.

import { ask, clientUrl, showLoading, url } from "./live.js";
import { colour, drawThemed, dress, showPlot } from "./plots.js";
import { fillTable } from "./tables.js";

const DEBOUNCE_MS = 150;
const MOST_LABELS = 40;
const NO_TOUCH = { tools: "pan,wheel_zoom,box_zoom,reset", active_drag: null, active_scroll: null };
const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");
const form = byId("terms");

let waiting = null;
let asked = 0;
let found = null;

/** Beside each number a slider, for those who can use it; other numbers can be typed. */
function addSlider(field) {
  const slider = document.createElement("input");
  const { low, high, step } = field.dataset;
  Object.assign(slider, { type: "range", min: low, max: high, step, value: field.value, tabIndex: 0 });
  slider.setAttribute("aria-label", `${field.labels[0].textContent}, slider`);
  slider.addEventListener("input", () => {
    field.value = slider.value;
    changed();
  });
  field.addEventListener("input", () => {
    slider.value = field.value;
    changed();
  });
  field.after(slider);
}

function changed() {
  clearTimeout(waiting);
  asked += 1; // the answer to what was asked before is no longer wanted
  waiting = setTimeout(plan, DEBOUNCE_MS);
}

async function plan() {
  const turn = asked;
  const answer = await ask(url("/dashboard/data/what-if"), {
    method: "POST",
    headers: { "X-CSRF-Token": document.querySelector("meta[name=csrf-token]").content },
    body: new URLSearchParams(new FormData(form)),
  });
  const said = answer && await answer.json();
  if (turn !== asked) return;
  showLoading(said ? "" : "failure");
  if (said === null) return;
  showErrors(said.errors);
  if (said.found === null) return; // what is wrong is said; the last plan stays
  found = said.found;
  show();
}

function showErrors(errors) {
  for (const field of form.querySelectorAll("[name]")) {
    const reason = errors[field.name];
    const place = byId(`${field.name}-error`);
    if (reason) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
    place.hidden = !reason;
    place.textContent = reason ?? "";
  }
  byId("result").classList.toggle("stale", Object.keys(errors).length > 0);
}

function show() {
  if (!found) return;
  const { plan } = found;
  byId("no-reports").hidden = plan !== null;
  byId("asked-without-report").textContent = whole.format(found.asked);
  byId("result").hidden = plan === null;
  if (plan === null) return;
  byId("summary").textContent = summary(plan);
  byId("selected").textContent = whole.format(plan.selected);
  byId("upper-bound").textContent = whole.format(plan.upper_bound);
  byId("total").textContent = `${plan.total_s.toFixed(1)} s`;
  byId("distribution").textContent = `${plan.distribution_s.toFixed(1)} s`;
  byId("asked").textContent = whole.format(found.asked);
  byId("candidates").textContent = whole.format(found.candidates);
  const { slots } = plan;
  fillTable("schedule-table", slots.client_id.map((id, place) => [
    id, ...[slots.update_s, slots.window_start_s, slots.window_end_s].map((column) => column[place].toFixed(1)),
  ]), slots.client_id.map(clientUrl));
  fillTable("curve-table", found.curve.deadline_s.map((deadline, place) => [
    deadline.toFixed(1), whole.format(found.curve.clients[place]),
  ]));
  drawSchedule(plan);
  drawCurve(plan);
}

function summary(plan) {
  const reasons = {
    DEADLINE: "are too slow", NO_DATA: "hold no data",
    TOO_SLOW: "would take longer than 18 years", NOT_CHOSEN: "were not chosen by the policy",
  };
  const others = Object.entries(plan.not_selected).map(([reason, count]) => `${whole.format(count)} ${reasons[reason]}`);
  return `${plan.policy} selects ${whole.format(plan.selected)} of ${whole.format(found.candidates)} clients` +
    (others.length ? `; ${others.join(", ")}.` : ".");
}

function drawSchedule(plan) {
  const { slots, updates_begin_s, selection_s, round_deadline_s } = plan;
  const rows = slots.client_id.length;
  const places = slots.client_id.map((_, place) => place + 1);
  const figure = Bokeh.Plotting.figure({
    ...NO_TOUCH, height: 140 + Math.min(rows, MOST_LABELS) * 16, sizing_mode: "stretch_width",
    toolbar_location: "above", x_axis_label: "time in the round (s)", y_axis_label: "place in upload order",
    x_range: new Bokeh.Range1d({ start: 0, end: 1.05 * Math.max(round_deadline_s ?? 0, ...slots.window_end_s) }),
    y_range: new Bokeh.Range1d({ start: Math.max(rows, 3) + 0.7, end: 0.3 }),
  });
  const bars = [
    ["distribution", "--distribution", places.map(() => selection_s), places.map(() => updates_begin_s)],
    ["update", "--update", places.map(() => updates_begin_s), slots.update_s.map((update_s) => updates_begin_s + update_s)],
    ["upload", "--upload", slots.window_start_s, slots.window_end_s],
  ];
  for (const [name, fill_color, left, right] of bars) {
    const height = { distribution: 0.9, update: 0.4, upload: 0.9 }[name]; // told apart by height too
    const source = new Bokeh.ColumnDataSource({ data: { left, right, y: places, client: slots.client_id } });
    const glyphs = figure.hbar({
      y: { field: "y" }, left: { field: "left" }, right: { field: "right" }, source, height,
      fill_color: colour(fill_color), line_color: null,
    });
    figure.add_tools(new Bokeh.HoverTool({
      renderers: [glyphs], tooltips: [["client", "@client"], [name, "@left{0.0} to @right{0.0} s"]],
    }));
  }
  if (round_deadline_s !== null) addDeadline(figure, round_deadline_s);
  dress(figure);
  showPlot(figure, byId("schedule-plot"));
}

function drawCurve(plan) {
  const { deadline_s: x, clients: y } = found.curve;
  const figure = Bokeh.Plotting.figure({
    ...NO_TOUCH, height: 260, sizing_mode: "stretch_width",
    toolbar_location: "above", x_axis_label: "round deadline (s)", y_axis_label: "clients selected",
  });
  figure.line({ x, y, line_color: colour("--series-1"), line_width: 2 });
  const glyphs = figure.scatter({ x, y, size: 6, color: colour("--series-1") });
  figure.add_tools(new Bokeh.HoverTool({ renderers: [glyphs], tooltips: [["deadline", "@x{0.0} s"], ["clients", "@y"]] }));
  if (plan.round_deadline_s !== null) {
    addDeadline(figure, plan.round_deadline_s);
    figure.scatter({ x: [plan.round_deadline_s], y: [plan.selected], marker: "diamond", size: 16, color: colour("--deadline") });
  }
  figure.x_range.start = 0;
  figure.y_range.start = 0;
  dress(figure);
  showPlot(figure, byId("curve-plot"));
}

function addDeadline(figure, location) {
  figure.add_layout(new Bokeh.Span({
    location, dimension: "height", line_color: colour("--deadline"), line_width: 2, line_dash: "dashed",
  }));
}

form.addEventListener("submit", (event) => {
  event.preventDefault(); // Enter: at once
  changed();
});
for (const id of ["policy", "cell_id"]) byId(id).addEventListener("change", changed);
form.querySelectorAll("input[data-low]").forEach(addSlider);
showLoading("loading");
drawThemed(show);
plan();
