import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { openPostgres } from '../../src/store/postgres/open.ts';
import type { StoreEngine } from '../../src/store/sql/engine.ts';
import { type Transaction, write, writeAs, writeIn } from '../../src/store/sql/kit/transaction.ts';
import { openSqlite } from '../../src/store/sqlite/open.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { logger } from './on_store.ts';
import { sqlitePath } from './sql.ts';

describe.each(ENGINES)('a transaction, on %s', (name) => {
  let database: TestDatabase;
  let engine: StoreEngine;
  beforeAll(async () => {
    database = await createMigratedDatabase(name);
    engine =
      name === 'sqlite'
        ? await openSqlite(sqlitePath(database), () => {})
        : await openPostgres(database, logger, () => {});
  });
  afterAll(async () => {
    await engine?.close();
    await database?.drop();
  });

  it('has no time and no mark before they are read', async () => {
    await write(engine, async (tx) => {
      expect(() => tx.now).toThrow('the time of this transaction was not read');
      expect(() => tx.mark).toThrow('the change mark of this transaction was not read');
    });
  });

  it('reads a time that is never earlier than the one before, and the newest is that of the transaction', async () => {
    await write(engine, async (tx) => {
      const first = await tx.readNow();
      expect(tx.now).toBe(first);
      const second = await tx.readNow();
      expect(second >= first).toBe(true);
      expect(tx.now).toBe(second);
    });
  });

  it('reads its mark once', async () => {
    const reading = vi.spyOn(engine.changes, 'mark');
    const mark = await write(engine, async (tx) => {
      const [first, second] = [await tx.readMark(), await tx.in('a').readMark()];
      expect([second, tx.mark]).toEqual([first, first]);
      return first;
    });
    expect(reading).toHaveBeenCalledTimes(1);
    expect(await write(engine, (tx) => tx.readMark())).toBeGreaterThan(mark);
  });

  it('shares time and mark among its namespaces and callers', async () => {
    const read = async (tx: Transaction) => [await tx.readNow(), await tx.readMark()];
    const caller = { namespace: 'a', actor: 'someone' };
    await writeAs(engine, caller, async (tx) => {
      const stamp = await read(tx.in('b'));
      expect([tx.now, tx.mark]).toEqual(stamp);
      expect([tx.namespace, tx.in('b').namespace]).toEqual(['a', 'b']);
    });
    await writeIn(engine, 'b', async (tx) => {
      const stamp = await read(tx);
      const other = tx.as(caller);
      expect([other.now, other.mark]).toEqual(stamp);
      expect([tx.namespace, other.namespace, other.caller.actor]).toEqual(['b', 'a', 'someone']);
    });
  });
});
