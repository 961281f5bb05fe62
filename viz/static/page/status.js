// The head of the page: what runs now. Asks for the state once a second while the page is seen, and tells the
// server's page code ("sync") when settings were changed, here or by anybody else.
(function (P) {
  "use strict";

  const EVERY_MS = 1000;
  const NAMES = {
    static: "static batching", mixed: "continuous batching", decode_first: "continuous, decode first",
    prefill_first: "continuous, prefill first", paged: "paged KV", contiguous: "contiguous KV",
  };
  const SETTINGS = ["policy", "decode_selection", "kv_layout", "prefix_caching", "block_size", "num_blocks",
    "max_num_seqs", "max_num_batched_tokens", "paused", "step_delay_s", "draining"];

  function fact(label, value, title) {
    const item = P.el("span", "pg-fact");
    item.title = title || "";
    item.append(P.el("span", "pg-fact-label", label), P.el("span", "pg-fact-value", value));
    return item;
  }

  function drainWords(draining) {
    const names = { kv_layout: "KV memory", num_blocks: "pool", block_size: "block size", prefix_caching: "sharing" };
    if (!draining || typeof draining !== "object") return "";
    return Object.entries(draining).map(([k, v]) => (names[k] || k) + " → " + v).join(", ");
  }

  P.mountStatus = function (head, trigger, props) {
    const title = P.el("div", "pg-title");
    title.append(P.el("span", "pg-logo"), P.el("h1", "", "tiny-vllm playground"),
      P.el("span", "pg-tagline", "many requests, one model: see who runs, who waits, and who owns which memory"));
    title.firstChild.setAttribute("aria-hidden", "true");
    const facts = P.el("div", "pg-facts");
    const notice = P.el("div", "pg-notice");
    notice.setAttribute("role", "status");
    head.append(title, facts, notice);

    let seen = null;
    function draw(s) {
      const mood = s.down ? "down" : s.paused ? "paused" : s.draining ? "draining" : "running";
      const dot = P.el("span", "pg-dot pg-" + mood, mood === "running" ? (s.num_running ? "running" : "ready") : mood);
      const where = [s.device, s.dtype, s.quantization && s.quantization !== "none" ? s.quantization : ""];
      facts.replaceChildren(dot,
        fact("model", s.model || "?", "The model that answers"),
        fact("on", where.filter(Boolean).join(" · "), "Where it is computed, and in which number format"),
        fact("batching", NAMES[s.policy] || s.policy, "Who decides which requests are part of a step"),
        fact("memory", NAMES[s.kv_layout] + (s.kv_layout === "paged" ? ", " + s.block_size + " tokens a block" : ""),
          "How keys and values are kept"),
        fact("sharing", s.kv_layout === "contiguous" ? "never (contiguous)" : s.prefix_caching ? "on" : "off",
          "Whether equal beginnings of prompts share their blocks"));
      let text = "";
      if (s.down) text = "The engine is down: " + s.down;
      else if (s.draining) {
        text = "Draining: " + (drainWords(s.draining) || "a change") + " takes effect when the " + s.num_running +
          " running have ended. Waiting requests stay in the queue.";
      } else if (s.paused) text = "Paused: nothing is computed. “One step” runs a single step, “Go on” resumes.";
      else if (s.locked) text = "The switches are locked on this server: they change the engine for everybody.";
      if (notice.textContent !== text) notice.textContent = text;
      notice.hidden = !text;
      const settings = JSON.stringify(SETTINGS.map((key) => s[key]));
      if (seen !== null && settings !== seen) trigger("sync");
      seen = settings;
    }

    async function ask() {
      if (!head.isConnected) return;
      if (!document.hidden) {
        try {
          const answer = await fetch(new URL("ui/state", document.baseURI), { cache: "no-store" });
          if (answer.ok) draw(await answer.json());
        } catch {
          notice.hidden = false;
          notice.textContent = "The server does not answer. The page goes on by itself when it is back.";
        }
      }
      setTimeout(ask, EVERY_MS);
    }
    if (props.value && props.value.policy) draw(props.value);
    P.refreshStatus = () => fetch(new URL("ui/state", document.baseURI), { cache: "no-store" })
      .then((answer) => answer.json()).then(draw).catch(() => {});
    ask();
  };
})(window.Playground);
