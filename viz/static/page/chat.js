// The conversation: turns, copy, regenerate, and switching between conversations. All of it lives in this browser's
// page, in the component's value; the server keeps none of it.
(function (P) {
  "use strict";

  P.mountChat = function (element, trigger, props, watch) {
    const bar = P.el("div", "pg-talks");
    const log = P.el("div", "pg-log");
    log.setAttribute("role", "log");
    log.setAttribute("aria-label", "Conversation");
    log.tabIndex = 0;
    element.append(bar, log);

    const value = () => props.value || { turns: [], saved: [] };
    const busy = () => { const t = value().turns; return t.length > 0 && ["waiting", "answering"].includes(t[t.length - 1].phase); };

    function keep(changes) { props.value = Object.assign({ turns: [], saved: [] }, value(), changes); draw(); }

    function titleOf(turns) {
      const first = turns.find((turn) => turn.role === "user");
      const words = first ? first.text.trim().replace(/\s+/g, " ") : "";
      return words.length > 36 ? words.slice(0, 35) + "…" : words || "Empty";
    }

    function drawBar() {
      const { turns, saved } = value();
      bar.replaceChildren();
      if (saved.length) {
        const list = P.el("select", "pg-select");
        list.setAttribute("aria-label", "Conversations");
        list.disabled = busy();
        list.append(new Option(titleOf(turns) + "  (this one)", "-1"));
        saved.forEach((old, i) => list.append(new Option(titleOf(old), String(i))));
        list.addEventListener("change", () => {
          const i = Number(list.value), others = saved.filter((_, at) => at !== i);
          keep({ turns: saved[i], saved: turns.length ? [turns, ...others] : others });
        });
        bar.append(list);
      }
      if (turns.length) {
        const fresh = P.button("pg-small", "+ New conversation", "Start a new conversation; this one stays in the list",
          () => keep({ turns: [], saved: [turns, ...saved].slice(0, 30) }));
        fresh.disabled = busy();
        bar.append(fresh);
      }
    }

    function drawTurn(turn, isLast) {
      const box = P.el("article", "pg-turn pg-" + turn.role);
      box.setAttribute("aria-label", turn.role === "user" ? "You" : "Model");
      if (turn.role === "user") box.append(P.el("div", "pg-text", turn.text));
      else P.drawAnswer(box, turn);
      return box;
    }

    function tools(box, turn, isLast) {
      box.querySelector(".pg-tools")?.remove();
      if (turn.role === "user" || busy() && isLast) return;
      const row = P.el("span", "pg-tools");
      const copy = P.button("pg-small", "Copy", "Copy this answer", async () => {
        try { await navigator.clipboard.writeText(turn.text); copy.textContent = "Copied"; }
        catch { copy.textContent = "Not allowed here"; }
        setTimeout(() => { copy.textContent = "Copy"; }, 1500);
      });
      row.append(copy);
      if (isLast) row.append(P.button("pg-small", "Regenerate", "Ask the same again", () => trigger("regenerate")));
      box.parts.head.append(row);
    }

    function drawEmpty() {
      const box = P.el("div", "pg-empty");
      box.append(P.el("p", "pg-empty-title", "Ask something, and watch the engine work on it."),
        P.el("p", "", "One question is dull for a scheduler. Send eight at once, above, or open this page twice."));
      for (const text of props.suggestions || []) {
        box.append(P.button("pg-suggestion", text, "", () => {
          props.value = Object.assign({ turns: [], saved: [] }, value(), { ask: text });
          trigger("suggest");
        }));
      }
      return box;
    }

    let drawn = null;
    function draw() {
      const { turns } = value();
      const stick = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
      const shape = turns.length + "/" + value().saved.length + "/" + busy() + "/" + (turns[0] ? turns[0].text : "");
      if (drawn !== shape) {
        drawn = shape;
        drawBar();
        log.replaceChildren(...(turns.length ? [] : [drawEmpty()]));
        turns.forEach((turn, i) => {
          const box = drawTurn(turn);
          log.append(box);
          tools(box, turn, i === turns.length - 1);
        });
        log.scrollTop = log.scrollHeight;
        return;
      }
      turns.forEach((turn, i) => {
        const box = log.children[i];
        if (turn.role !== "user" && box) P.drawAnswer(box, turn);
      });
      if (stick) log.scrollTop = log.scrollHeight;
    }

    watch("value", draw);
    draw();
    window.addEventListener("playground:select", (e) => P.showSelection(log, e.detail.request));
  };
})(window.Playground);
