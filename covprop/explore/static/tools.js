"use strict";
// What the page and its plots share: asking the server, making elements, writing numbers.

// An answer, or an error with the server's own sentence.
async function ask(name, given, options) {
  const query = Object.entries(given || {}).filter(([, v]) => v !== null);
  let answer;
  try {
    answer = await fetch(name + (query.length ? "?" + new URLSearchParams(query) : ""), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer; is `covprop explore` still running?");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function post(name, given) {
  const headers = { "Content-Type": "application/json" };
  return ask(name, null, { method: "POST", headers, body: JSON.stringify(given) });
}

function make(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const show = (value, digits) =>
  typeof value === "string" ? value : value.toFixed(digits).replace("-", "−");
const whole = (value) => value.toLocaleString("en");
const probability = (p) => typeof p === "number" && p > 0.9999 ? "> 0.9999" : show(p, 4);
