"use strict";
const live = document.getElementById("live"), state = document.getElementById("state");
const interval = Number(document.body.dataset.interval);
async function refresh() {
  try {
    const answer = await fetch("/live", { cache: "no-store" });
    if (!answer.ok) throw new Error("status " + answer.status);
    const text = await answer.text();
    const wide = [...live.querySelectorAll(".wide")].map((table) => table.scrollLeft);
    live.innerHTML = text;
    live.querySelectorAll(".wide").forEach((table, at) => { table.scrollLeft = wide[at] || 0; });
    state.textContent = "";
  } catch (error) {
    state.textContent = "no answer from doorbell serve; trying again";
  }
  setTimeout(refresh, interval);
}
setTimeout(refresh, interval);
