import type { LockedHead, Locks, Tx } from '../sql/kit/engine.ts';
import { HEAD_COLUMNS, type HeadRowRead, readHead } from '../sql/log/append/heads.ts';
import { CLOCK, type Connection } from './connection.ts';

const SELECT_HEAD = `select ${HEAD_COLUMNS.join()}, ${CLOCK}() as now from trajectories where tree = ? and key = ?`;

/** One transaction writes at a time, so it needs no locks and waits for none. */
export class SqliteLocks implements Locks {
  readonly #writer: Connection;

  constructor(writer: Connection) {
    this.#writer = writer;
  }

  rows<Q>(query: Q): Q {
    return query;
  }

  freeRows<Q>(query: Q): Q {
    return query;
  }

  async names(): Promise<void> {}

  async heads(_tx: Tx, refs: readonly { tree: bigint; key: bigint }[]): Promise<{ heads: LockedHead[]; now: string }> {
    const select = this.#writer.prepare(SELECT_HEAD);
    const heads: LockedHead[] = [];
    let now = '';
    for (const { tree, key } of refs) {
      const [row] = select.all([tree, key]) as HeadRowRead[];
      if (row === undefined) continue;
      now = row.now;
      heads.push(readHead(row));
    }
    return { heads, now };
  }

  async waitBriefly(): Promise<void> {}
}
