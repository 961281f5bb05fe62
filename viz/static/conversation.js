// Which requests of this page's conversation carry more than the last message. Pure: no DOM; shared by chat and panels.

import { count } from "./words.js";

const withEarlier = new Set();

/** Take in the turns of the conversation as it is shown: {request, has_earlier}. */
export function noteTurns(turns) {
  for (const { request, has_earlier } of turns) {
    if (!request) continue;
    if (has_earlier) withEarlier.add(request);
    else withEarlier.delete(request); // after a restart requests are numbered anew
  }
}

/** "308 tokens, earlier messages included": a chat sends the whole conversation every time. */
export function promptWords(id, numTokens) {
  return `${count(numTokens, "token")}${withEarlier.has(id) ? ", earlier messages included" : ""}`;
}
