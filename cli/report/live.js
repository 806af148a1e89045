// Replaces the view by each one that the server sends: HTML in which the server has escaped every name.
"use strict";
const view = document.getElementById("view");
const connection = document.getElementById("connection");
const events = new EventSource("/events");
connection.textContent = "Connecting";
events.onerror = () => { connection.textContent = "Connection lost, trying again"; };
events.addEventListener("trouble", (event) => { connection.textContent = JSON.parse(event.data); });
events.onmessage = (event) => {
  const focused = view.contains(document.activeElement) ? document.activeElement.id : "";
  view.innerHTML = JSON.parse(event.data);
  document.getElementById(focused)?.focus();
  connection.textContent = "Live";
};
