// The page of a round: renewed when something happens to it, and when its task opens the next one.

import { gantt } from "./gantt.js";
import { ask, atMostEvery, follow, refreshParts, showLoading, url } from "./live.js";
import { makeSortable } from "./sortable_table.js";

const { round, task } = document.getElementById("round").dataset;
const given = new URLSearchParams(location.search);
const chartPath = url(`/dashboard/data/rounds/${round}`);
const partsPath = `${url(`/dashboard/data/rounds/${round}/parts`)}?${given}`;
const draw = gantt(document.getElementById("gantt"));
const sortAgain = makeSortable(document.getElementById("rows"));

const refresh = atMostEvery(500, async () => {
  await refreshParts(partsPath);
  sortAgain();
  const answer = await ask(chartPath);
  showLoading(answer ? "" : "failure");
  if (!answer) return;
  const data = await answer.json();
  draw(data);
  // Even if somebody has it open: there is nothing left to close.
  if (!["scheduled", "collecting"].includes(data.state)) document.querySelector("#close details")?.remove();
});

if (!document.getElementById("gantt").hidden) showLoading("loading");
refresh();
follow({
  taskId: task,
  onOpen: refresh,
  onEvent: (event) => {
    if (event.round_id === round || event.kind.startsWith("round.")) refresh();
  },
});
