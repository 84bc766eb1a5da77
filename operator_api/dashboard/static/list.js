// A list that keeps itself up to date: what changes on it is replaced by what the server renders anew.

import { atMostEvery, follow, refreshParts } from "./live.js";

const NOW_AND_THEN_MS = 10000; // reports have no events

const refresh = atMostEvery(2000, () => refreshParts(location.pathname + location.search));

follow({ onEvent: refresh, onOpen: refresh });
setInterval(() => {
  if (!document.hidden) refresh();
}, NOW_AND_THEN_MS);
