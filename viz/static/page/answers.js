// Draws answers of the model as plain text: in a conversation and on the wall of many at once.
// Every word that people or the model wrote goes in through textContent; nothing here builds HTML from strings.
window.Playground = window.Playground || {};

(function (P) {
  "use strict";

  P.el = function (tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined && text !== null) node.textContent = text;
    return node;
  };

  P.button = function (className, label, title, onClick) {
    const button = P.el("button", className, label);
    button.type = "button";
    if (title) { button.title = title; button.setAttribute("aria-label", title); }
    button.addEventListener("click", onClick);
    return button;
  };

  P.seconds = function (value) {
    if (value === null || value === undefined) return "–";
    if (value < 0.0995) return (value * 1000).toFixed(value < 0.00995 ? 1 : 0) + " ms";
    return value.toFixed(value < 10 ? 2 : 1) + " s";
  };

  // One colour and one letter for a request everywhere on the page: the panels decide which.
  P.requestLetter = function (id) {
    if (P.letterOf) return P.letterOf(id);
    if (id < 1) return String(id);
    let letters = "";
    for (let n = id; n > 0; n = Math.floor((n - 1) / 26)) letters = String.fromCharCode(65 + ((n - 1) % 26)) + letters;
    return letters;
  };
  P.requestColor = function (id) {
    if (P.colorOf) return P.colorOf(id);
    return ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b58900", "#5e4fa2", "#999999"][(id - 1) % 8];
  };

  P.requestChip = function (id) {
    const chip = P.button("pg-chip", P.requestLetter(id), "Request " + P.requestLetter(id) +
      " (number " + id + "): show it in the panels", () => P.select(id));
    chip.style.setProperty("--request-color", P.requestColor(id));
    chip.dataset.request = id;
    return chip;
  };

  // The one selection of the page. Panels listen to this event and send it too.
  P.select = function (id) {
    window.dispatchEvent(new CustomEvent("playground:select", { detail: { request: id } }));
  };
  P.showSelection = function (root, id) {
    for (const node of root.querySelectorAll("[data-answer]")) {
      node.classList.toggle("pg-selected", id !== null && Number(node.dataset.answer) === id);
    }
  };

  const ENDED = {
    stop: "finished by itself", length: "cut at the token limit", abort: "stopped", error: "failed",
  };

  function metric(value, label, title) {
    const item = P.el("span", "pg-metric");
    item.title = title;
    item.append(P.el("b", "", value), " " + label);
    return item;
  }

  P.metricsLine = function (m) {
    const line = P.el("div", "pg-metrics");
    line.append(
      metric(P.seconds(m.queue_s), "queued", "Time from sending until the request was first part of a step"),
      metric(P.seconds(m.ttft_s), "to first token", "TTFT: from sending to the first token, waiting included"),
      metric(String(m.num_output_tokens), m.num_output_tokens === 1 ? "token" : "tokens", "Tokens of the answer"),
      metric(m.tokens_per_s ? m.tokens_per_s.toFixed(1) : "–", "tokens/s", "Tokens a second, once the first one was out"),
      metric(m.num_cached_tokens + " / " + m.num_prompt_tokens, "cached",
        "Prompt tokens whose keys and values were found in the prefix cache, of all prompt tokens"),
    );
    if (m.num_preemptions) {
      line.append(metric(m.num_preemptions + "×", "preempted", "Its blocks were given to another; it was computed again"));
    }
    line.append(P.el("span", "pg-ended pg-ended-" + m.finish_reason, ENDED[m.finish_reason] || m.finish_reason));
    return line;
  };

  // Brings `box` up to date with one answer; touches only what changed, so that a selection of text survives.
  P.drawAnswer = function (box, answer) {
    if (!box.parts) {
      box.parts = { head: P.el("div", "pg-answer-head"), text: P.el("div", "pg-text"), foot: P.el("div", "pg-foot") };
      box.append(box.parts.head, box.parts.text, box.parts.foot);
      box.seen = {};
    }
    const seen = box.seen;
    if (seen.request !== answer.request) {
      seen.request = answer.request;
      box.parts.head.querySelector(".pg-chip")?.remove();
      if (answer.request) {
        box.dataset.answer = answer.request;
        box.style.setProperty("--request-color", P.requestColor(answer.request));
        box.parts.head.prepend(P.requestChip(answer.request));
      }
    }
    if (seen.text !== answer.text) {
      seen.text = answer.text;
      P.setText(box.parts.text, answer.text);
    }
    const foot = JSON.stringify([answer.phase, answer.note, answer.error, answer.metrics]);
    if (seen.foot !== foot) {
      seen.foot = foot;
      drawFoot(box, answer);
    }
  };

  function drawFoot(box, answer) {
    box.classList.toggle("pg-live", answer.phase === "answering");
    const foot = box.parts.foot;
    foot.replaceChildren();
    if (answer.phase === "waiting") {
      const wait = P.el("div", "pg-wait");
      wait.append(P.el("span", "pg-spinner"), P.el("span", "", answer.note || "waiting"));
      wait.firstChild.setAttribute("aria-hidden", "true");
      foot.append(wait);
    }
    if (answer.error) foot.append(P.el("div", "pg-error", answer.error));
    if (answer.metrics) foot.append(P.metricsLine(answer.metrics));
  }

  // Appends where it can: a growing text keeps its node, and what the reader has marked.
  P.setText = function (node, text) {
    const last = node.firstChild;
    if (last && node.childNodes.length === 1 && last.nodeType === Node.TEXT_NODE && text.startsWith(last.data)) {
      last.appendData(text.slice(last.data.length));
    } else {
      node.textContent = text;
    }
  };

  P.mountWall = function (element, props, watch) {
    const wall = P.el("div", "pg-wall");
    const live = P.el("div", "pg-sr");
    live.setAttribute("aria-live", "polite");
    element.append(wall, live);
    function draw() {
      const cards = (props.value && props.value.cards) || [];
      while (wall.children.length > cards.length) wall.lastChild.remove();
      cards.forEach((card, i) => {
        let box = wall.children[i];
        if (!box || box.run !== props.value.run) {
          const fresh = P.el("article", "pg-card");
          fresh.run = props.value.run;
          const ask = P.el("div", "pg-ask", card.prompt);
          fresh.append(ask);
          if (box) box.replaceWith(fresh); else wall.append(fresh);
          box = fresh;
        }
        P.drawAnswer(box, card);
      });
      const done = cards.filter((card) => card.metrics || card.error).length;
      if (cards.length) live.textContent = done === cards.length ? "All answers are complete." : "";
    }
    watch("value", draw);
    draw();
    window.addEventListener("playground:select", (e) => P.showSelection(wall, e.detail.request));
  };
})(window.Playground);
