// Who owns which block, replayed from block changes; the browser's twin of engine/telemetry/ring.py's BlockMap.
// Pure: no DOM. Also keeps, per block, its first owner and how many tables hold it, so that a grid of 200,000 blocks
// is drawn from flat arrays.

const NOBODY = -1;

export class BlockMap {
  constructor() {
    this.step = 0;
    this.blockSize = 1;
    this.tables = new Map(); // id → block ids
    this.computed = new Map(); // id → tokens stored
    this.outputs = new Map(); // id → length of the answer
    this.cached = new Map(); // block → head of its prefix digest
    this.sharing = null; // whether equal beginnings are shared; null is not known
    this.resize(0, 1);
  }

  static fromBase(base) {
    const map = new BlockMap();
    map.resize(base.num_blocks, base.block_size);
    map.step = base.step;
    map.sharing = base.prefix_caching ?? null;
    for (const [id, ids] of Object.entries(base.block_tables)) map.setTable(Number(id), 0, ids);
    for (const [id, n] of Object.entries(base.computed)) map.computed.set(Number(id), n);
    for (const [block, head] of base.cached) map.cached.set(block, head);
    for (const [id, request] of Object.entries(base.requests)) {
      map.outputs.set(Number(id), request.num_output_tokens ?? 0);
    }
    return map;
  }

  get numBlocks() {
    return this.owner.length;
  }

  resize(numBlocks, blockSize) {
    this.blockSize = blockSize;
    this.owner = new Int32Array(numBlocks).fill(NOBODY); // some request whose table holds the block
    this.index = new Int32Array(numBlocks); // logical index in that request's table
    this.refs = new Uint16Array(numBlocks); // tables that hold it
    this.touched = new Int32Array(numBlocks).fill(NOBODY); // step of its last change
    this.tables.clear();
    this.cached.clear();
  }

  clone() {
    const copy = new BlockMap();
    copy.step = this.step;
    copy.blockSize = this.blockSize;
    copy.sharing = this.sharing;
    for (const [id, table] of this.tables) copy.tables.set(id, table.slice());
    copy.computed = new Map(this.computed);
    copy.outputs = new Map(this.outputs);
    copy.cached = new Map(this.cached);
    copy.owner = this.owner.slice();
    copy.index = this.index.slice();
    copy.refs = this.refs.slice();
    copy.touched = this.touched.slice();
    return copy;
  }

  setTable(id, start, ids) {
    const table = this.tables.get(id) ?? [];
    this.tables.set(id, table);
    for (let i = start; i < table.length; i++) this.letGo(table[i], id);
    table.length = Math.min(table.length, start);
    for (const block of ids) {
      this.refs[block] += 1;
      this.owner[block] = id;
      this.index[block] = table.length;
      this.touched[block] = this.step;
      table.push(block);
    }
  }

  letGo(block, id) {
    this.refs[block] -= 1;
    this.touched[block] = this.step;
    if (this.refs[block] === 0) {
      this.owner[block] = NOBODY;
    } else if (this.owner[block] === id) {
      for (const [other, table] of this.tables) {
        const index = other === id ? -1 : table.indexOf(block);
        if (index >= 0) {
          this.owner[block] = other;
          this.index[block] = index;
          break;
        }
      }
    }
  }

  /** Move from just before `frame` to just after it. */
  apply(frame) {
    if (frame.numBlocks !== this.numBlocks || frame.blockSize !== this.blockSize) {
      this.resize(frame.numBlocks, frame.blockSize);
    }
    this.step = frame.step;
    for (const event of frame.events) {
      if (event.type === "arrived") this.outputs.set(event.request_id, 0);
      if (event.type === "settings" || event.type === "draining") this.sharing = event.prefix_caching ?? this.sharing;
    }
    for (const [id, n] of frame.outputs) {
      if (this.outputs.has(id)) this.outputs.set(id, n);
    }
    for (const id of frame.blocks.released) {
      for (const block of this.tables.get(id) ?? []) this.letGo(block, id);
      this.tables.delete(id);
      this.computed.delete(id);
    }
    for (const [id, start, ids] of frame.blocks.tables) this.setTable(id, start, ids);
    for (const [id, n] of frame.computed) {
      if (this.tables.has(id)) this.computed.set(id, n);
    }
    for (const block of frame.blocks.uncached) {
      this.cached.delete(block);
      this.touched[block] = frame.step;
    }
    for (const [block, head] of frame.blocks.cached) this.cached.set(block, head);
    for (const event of frame.events) {
      if (event.type === "finished") this.outputs.delete(event.request_id);
    }
  }

  /** Tokens stored in a block, 0 to blockSize; a cached one is full. */
  fill(block) {
    const id = this.owner[block];
    if (id === NOBODY) return this.cached.has(block) ? this.blockSize : 0;
    const stored = (this.computed.get(id) ?? 0) - this.index[block] * this.blockSize;
    return Math.max(0, Math.min(this.blockSize, stored));
  }

  /** Everybody whose table holds `block`, as [id, logical index]. */
  owners(block) {
    if (this.refs[block] === 0) return [];
    if (this.refs[block] === 1) return [[this.owner[block], this.index[block]]];
    const all = [];
    for (const [id, table] of this.tables) {
      const index = table.indexOf(block);
      if (index >= 0) all.push([id, index]);
    }
    return all;
  }

  /** "free", "cached" (no owner, can be found by prefix), "active" or "shared". */
  kind(block) {
    if (this.refs[block] > 1) return "shared";
    if (this.refs[block] === 1) return "active";
    return this.cached.has(block) ? "cached" : "free";
  }
}
