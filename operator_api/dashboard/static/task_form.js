// The form of a new task: parameters are shown with the policy or aggregator that they belong to.

import { follow } from "./live.js";

const form = document.getElementById("new-task");

function showParameters() {
  for (const field of form.querySelectorAll("[data-belongs-to]")) {
    const [choice, kind] = field.dataset.belongsTo.split("=");
    field.hidden = form.elements[choice].value !== kind;
  }
}

form.addEventListener("change", showParameters);
showParameters();
follow({ onEvent: () => {} });
