"use strict";
// Replaces the report whenever the server has read new events. Open tables, their places and the focus stay.
const source = new EventSource("events");
const connection = document.getElementById("connection");
source.onopen = () => { connection.textContent = "live"; };
source.onerror = () => { connection.textContent = "connection lost, trying again"; };

// How old the figures are, counted on from what the server said.
let read = Date.now();
setInterval(() => {
  const age = document.getElementById("age");
  if (!age) return;
  const seconds = Number(age.dataset.seconds) + Math.round((Date.now() - read) / 1000);
  age.textContent = seconds < 60 ? seconds + " s" : Math.floor(seconds / 60) + " min " + (seconds % 60) + " s";
}, 1000);

function keyOf(element) {
  if (!element || !element.closest("#report")) return null;
  const details = element.closest("details");
  if (element.tagName === "SUMMARY" && details) return ["#" + CSS.escape(details.id) + " > summary"];
  const label = element.getAttribute("aria-label");
  return label ? ['[role="region"][aria-label="' + CSS.escape(label) + '"]'] : null;
}

source.addEventListener("report", (event) => {
  const told = JSON.parse(event.data);
  const report = document.getElementById("report");
  const open = [...report.querySelectorAll("details[open]")].map((each) => each.id);
  const places = [...report.querySelectorAll('[role="region"]')].map((each) => [keyOf(each), each.scrollTop, each.scrollLeft]);
  const focused = keyOf(document.activeElement);
  report.innerHTML = told.html;
  read = Date.now();
  for (const id of open) { const found = document.getElementById(id); if (found) found.open = true; }
  for (const [key, top, left] of places) {
    const found = key && report.querySelector(key[0]);
    if (found) { found.scrollTop = top; found.scrollLeft = left; }
  }
  const again = focused && report.querySelector(focused[0]);
  if (again) again.focus({ preventScroll: true });
  if (told.said) document.getElementById("said").textContent = told.said;
});
