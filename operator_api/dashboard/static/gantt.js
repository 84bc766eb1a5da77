// The chart of a round: for each slot as planned above and as it went below, from left to right in round time.

import { colour, dress, drawThemed, showPlot } from "./plots.js";

const PLANNED = -0.2;
const ACTUAL = 0.2;
const THIN = 0.16;
const THICK = 0.32;
const ROUND_ROW = 0; // above the slots, which are at 1, 2, …
const NARROW_PX = 600;
const MANY_ROWS = 15; // more do not fit on a screen: the axis is above, too

const BARS = [
  { name: "selection, planned", colour: "--planned", height: THICK, bars: plannedSelection },
  { name: "distribution, planned", colour: "--distribution", height: THICK, bars: plannedDistribution },
  { name: "aggregation, planned", colour: "--planned", height: THICK, bars: plannedAggregation },
  { name: "update, planned", colour: "--update", height: THIN, bars: plannedUpdates },
  { name: "upload, planned", colour: "--upload", height: THICK, bars: plannedUploads },
  { name: "update, actual", colour: "--update", height: THIN, bars: actualUpdates },
  { name: "upload, actual", colour: "--upload", height: THICK, bars: actualUploads },
];
const ENDS = {
  received: { marker: "circle", colour: "--ok" },
  late: { marker: "triangle", colour: "--warning" },
  "discarded": { marker: "x", colour: "--bad" },
};

/** A function that shows what GET /dashboard/data/rounds/{round_id} answers in an element, again and again. */
export function gantt(element) {
  let data = null;
  let drawn = null;

  function draw() {
    if (!data?.slots.order.length) return;
    element.hidden = false;
    drawn = makePlot(data, element.clientWidth);
    showPlot(drawn.plot, element);
    renew();
  }

  function renew() {
    for (const { name, bars } of BARS) drawn.sources[name].data = columns(bars(data));
    drawn.sources.ends.data = ends(data);
    drawn.plot.x_range.end = lastMoment(data) * 1.03;
    moveNow();
  }

  function moveNow() {
    if (!drawn) return;
    const shown = data.clock === "wall" && data.is_open;
    const now = (Date.now() + data.ahead_ms - Date.parse(data.started_at)) / 1000;
    drawn.now.visible = shown;
    if (!shown) return;
    drawn.now.location = now;
    if (now > drawn.plot.x_range.end) drawn.plot.x_range.end = now * 1.1;
  }

  drawThemed(draw);
  setInterval(moveNow, 1000);
  return (fresh) => {
    data = { ...fresh, ahead_ms: Date.parse(fresh.now) - Date.now() };
    if (drawn) renew();
    else draw();
  };
}

function makePlot(data, width) {
  const { order, client_id: ids } = data.slots;
  const rows = order.length;
  const plot = Bokeh.Plotting.figure({
    sizing_mode: "stretch_width",
    height: 70 + (rows + 1) * (rows > 30 ? 20 : 32),
    x_range: new Bokeh.Range1d({ start: 0, end: lastMoment(data) * 1.03 }),
    y_range: new Bokeh.Range1d({ start: rows + 0.6, end: -0.6 }),
    x_axis_label: "round time (s)",
    toolbar_location: null,
    tools: "",
  });
  if (rows > MANY_ROWS) plot.add_layout(new Bokeh.LinearAxis({ axis_label: "round time (s)" }), "above");
  const sources = {};
  const renderers = BARS.map(({ name, colour: fill, height }) => {
    const source = (sources[name] = new Bokeh.ColumnDataSource({ data: columns([]) }));
    return plot.hbar({ field: "y" }, height, { field: "right" }, { field: "left" }, {
      source,
      name,
      fill_color: colour(fill),
      fill_alpha: name.endsWith("planned") ? 0.3 : 1,
      line_color: colour(fill),
    });
  });
  sources.ends = new Bokeh.ColumnDataSource({ data: { x: [], y: [], marker: [], colour: [] } });
  plot.scatter({ field: "x" }, { field: "y" }, {
    source: sources.ends,
    name: "ends",
    size: 9,
    marker: { field: "marker" },
    fill_color: { field: "colour" },
    line_color: colour("--text"),
  });
  if (data.round_deadline_s !== null) {
    plot.add_layout(line("deadline", data.round_deadline_s, colour("--deadline"), "solid"));
  }
  const now = line("now", 0, colour("--text"), "dashed");
  plot.add_layout(now);
  const most = width < NARROW_PX ? 8 : 24;
  nameRows(plot, ["round", ...ids.map((id, place) => `${order[place]}  ${shortened(id, most)}`)]);
  plot.add_tools(
    new Bokeh.HoverTool({
      renderers,
      tooltips: [["client", "@client"], ["what", "@what"], ["from", "@left{0.000} s"], ["to", "@right{0.000} s"]],
    }),
  );
  dress(plot);
  return { plot, sources, now };
}

function line(name, location, line_color, line_dash) {
  return new Bokeh.Span({ name, location, dimension: "height", line_color, line_dash, line_width: 2 });
}

/** Plain text: Bokeh would take what stands between dollar signs for a formula, and load what draws it. */
function nameRows(plot, names) {
  const [axis] = plot.yaxis;
  axis.ticker = new Bokeh.FixedTicker({ ticks: names.map((_, row) => row), minor_ticks: [] });
  axis.major_label_overrides = new Map(names.map((text, row) => [row, new Bokeh.PlainText({ text })]));
  for (const grid of plot.ygrid) grid.visible = false;
}

function shortened(text, most) {
  const characters = [...text];
  // Ids of devices differ at the end.
  return characters.length <= most ? text : `…${characters.slice(1 - most).join("")}`;
}

function bar(row, what, client, left, right) {
  return { y: row + (what.endsWith("planned") ? PLANNED : ACTUAL), what, client, left: Math.max(left, 0), right };
}

function columns(bars) {
  const names = ["y", "left", "right", "what", "client"];
  return Object.fromEntries(names.map((name) => [name, bars.map((bar) => bar[name])]));
}

function ofRound(what, start, length) {
  return length > 0 ? [bar(ROUND_ROW, what, "", start, start + length)] : [];
}

function plannedSelection(data) {
  return ofRound("selection, planned", 0, data.selection_s);
}

function plannedDistribution(data) {
  return ofRound("distribution, planned", data.selection_s, data.distribution_s);
}

function plannedAggregation(data) {
  return ofRound("aggregation, planned", uploadsBegin(data) + data.elapsed_s, data.aggregation_s);
}

function uploadsBegin(data) {
  return data.selection_s + data.distribution_s;
}

/** One bar for each slot for which times gives where it begins and ends. */
function ofSlots(data, what, times) {
  const { slots } = data;
  return slots.order.flatMap((_, place) => {
    const slot = Object.fromEntries(Object.entries(slots).map(([name, values]) => [name, values[place]]));
    const span = times(slot);
    return span ? [bar(place + 1, what, slot.client_id, ...span)] : [];
  });
}

function plannedUpdates(data) {
  return ofSlots(data, "update, planned", (slot) => [slot.begin_s, slot.begin_s + slot.update_s]);
}

function plannedUploads(data) {
  return ofSlots(data, "upload, planned", (slot) => [slot.window_start_s, slot.window_end_s]);
}

/** An update begins with the plan's, or by the wall clock when the model was fetched; its client may wait after it. */
function actualUpdates(data) {
  return ofSlots(data, "update, actual", (slot) => {
    if (slot.actual_update_s === null) return null;
    if (data.clock === "simulated") return [slot.begin_s, slot.begin_s + slot.actual_update_s];
    const start = slot.model_fetched_s ?? slot.elapsed_s - slot.actual_upload_s - slot.actual_update_s;
    return [start, start + slot.actual_update_s];
  });
}

function actualUploads(data) {
  return ofSlots(data, "upload, actual", (slot) =>
    slot.actual_upload_s === null ? null : [slot.elapsed_s - slot.actual_upload_s, slot.elapsed_s]);
}

/** Where uploads ended, with a sign for what became of them. */
function ends(data) {
  const { slots } = data;
  const places = slots.order.map((_, place) => place).filter((place) => slots.outcome[place] in ENDS);
  return {
    x: places.map((place) => slots.elapsed_s[place]),
    y: places.map((place) => place + 1 + ACTUAL),
    marker: places.map((place) => ENDS[slots.outcome[place]].marker),
    colour: places.map((place) => colour(ENDS[slots.outcome[place]].colour)),
  };
}

function lastMoment(data) {
  const planned = uploadsBegin(data) + data.elapsed_s + data.aggregation_s;
  return Math.max(planned, data.round_deadline_s ?? 0, data.duration_s ?? 0, ...data.slots.elapsed_s);
}
