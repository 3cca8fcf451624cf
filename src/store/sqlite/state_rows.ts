import type { Digest } from '../../domain/ids.ts';
import type { Tx } from '../sql/kit/engine.ts';
import { bindDigest, isSet } from '../sql/kit/values.ts';
import type { FoundState, StateRows } from '../sql/log/engine.ts';
import type { Connection } from './connection.ts';

const FIND = 'select size, referenced from states where namespace = ? and digest = ? and collected = 0';
const REFER =
  'update states set referenced = 1, version = version + 1 where namespace = ? and digest = ? and collected = 0';

export class SqliteStateRows implements StateRows {
  readonly #writer: Connection;

  constructor(writer: Connection) {
    this.#writer = writer;
  }

  async find(_tx: Tx, namespace: string, digests: readonly Digest[]): Promise<FoundState[]> {
    const select = this.#writer.prepare(FIND);
    return digests.flatMap((digest) => {
      const rows = select.all([namespace, bindDigest(digest)]) as { size: bigint; referenced: bigint }[];
      return rows.map(({ size, referenced }) => ({ digest, size: Number(size), referenced: isSet(referenced) }));
    });
  }

  async refer(_tx: Tx, namespace: string, digests: readonly Digest[]): Promise<Digest[]> {
    const update = this.#writer.prepare(REFER);
    return digests.filter((digest) => Number(update.run([namespace, bindDigest(digest)]).changes) > 0);
  }

  /** One transaction writes at a time, so its references are committed before the next one changes a state. */
  async outwaitReferrers(): Promise<boolean> {
    return true;
  }
}
