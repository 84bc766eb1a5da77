// The overview: renewed when something happens, and now and then for what nobody tells of, such as health.

import { atMostEvery, follow, refreshParts, url } from "./live.js";

const NOW_AND_THEN_MS = 5000;

const refresh = atMostEvery(1000, () => refreshParts(url("/dashboard/data/overview")));

follow({ onEvent: refresh, onOpen: refresh });
setInterval(() => {
  if (!document.hidden) refresh();
}, NOW_AND_THEN_MS);
