import { expect } from 'vitest';
import type { NewState } from '../../src/domain/step.ts';
import { newState } from '../support/steps.ts';
import type { OutsideSql } from './sql.ts';

const KIB = 1024;

/** A state of which about three quarters compress. Equal seeds have equal bytes but for the changed ones. */
export function stateOf(seed: number, bytes: number, changes: readonly number[] = []): NewState {
  const data = Buffer.alloc(bytes);
  let x = seed + 1;
  for (let at = 0; at < bytes; at += 1) {
    x = (Math.imul(x, 1103515245) + 12345) >>> 0;
    data[at] = at % 4 === 0 ? x >>> 24 : 97 + (at % 3);
  }
  for (const [i, change] of changes.entries()) data.writeUInt32LE(change, (i * 97) % (bytes - 4));
  return newState(data);
}

export interface StoredState {
  readonly digest: string;
  readonly base: string | undefined;
  readonly size: number;
  readonly stored: number;
  readonly depth: number;
  readonly baseBytes: number;
}

export async function storedStates(sql: OutsideSql, namespace: string): Promise<Map<string, StoredState>> {
  const rows = await sql.rows(`select digest, base, size, depth, base_bytes, octet_length(data) as stored
    from states where namespace = '${namespace}' and upload is null`);
  const hex = (bytes: unknown) => Buffer.from(bytes as Uint8Array).toString('hex');
  return new Map(
    rows.map(({ digest, base, size, depth, base_bytes, stored }) => [
      hex(digest),
      {
        digest: hex(digest),
        base: base === null ? undefined : hex(base),
        size: Number(size),
        stored: Number(stored),
        depth: Number(depth),
        baseBytes: Number(base_bytes),
      },
    ]),
  );
}

/** Checks every stored state: its bases exist, and the bounds of its chain hold. */
export function checkChains(states: ReadonlyMap<string, StoredState>): void {
  const dependents = new Map<string, number>();
  for (const state of states.values()) {
    let [depth, bytes] = [0, 0];
    for (let at = state; at.base !== undefined; depth += 1) {
      const base = states.get(at.base);
      if (base === undefined) throw new Error(`the base ${at.base} of ${at.digest} is missing`);
      bytes += base.size;
      at = base;
    }
    expect(depth).toBeLessThanOrEqual(state.depth);
    expect(bytes).toBeLessThanOrEqual(state.baseBytes);
    expect(state.depth).toBeLessThanOrEqual(32);
    if (state.base === undefined) continue;
    expect(state.baseBytes + state.size).toBeLessThanOrEqual(4 * 1024 * KIB);
    dependents.set(state.base, (dependents.get(state.base) ?? 0) + 1);
  }
  expect(Math.max(0, ...dependents.values())).toBeLessThanOrEqual(32);
}
