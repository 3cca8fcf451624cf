import { describe, expect, it } from 'vitest';
import { createDatabase, ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { describeStore, openOn } from './on_store.ts';
import { outsideSql } from './sql.ts';
import { addTokenKey } from './token_keys.ts';
import { expectVerified, faultsOf } from './verified.ts';

describeStore('keys of tokens', (on) => {
  it('RD12: are listed from the newest on', async () => {
    const list = async () => (await on.store.listTokenSecrets()).map((secret) => Buffer.from(secret));
    const [first] = await list();
    const [second, third] = [await addTokenKey(on.sql), await addTokenKey(on.sql)];
    expect(await list()).toEqual([third, second, first]);
  });
});

describe.each(ENGINES)('keys of tokens, on %s', (engine) => {
  it('V1, RD12: verification finds that there is none, and one that is short', async () => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const sql = await outsideSql(database);
    await expectVerified(store);
    const short = engine === 'sqlite' ? `x'0102'` : `'\\x0102'`;
    await sql.rows(`insert into token_keys (number, secret) values (7, ${short})`);
    const told = async () => (await faultsOf(store)).map(({ check, message }) => [check, message]);
    expect(await told()).toEqual([['ROWS', 'table token_keys: "secret" must have 32 bytes, but one has 2']]);
    await sql.rows('delete from token_keys');
    expect(await told()).toEqual([['ROWS', expect.stringContaining('token_keys: there is no row')]]);
    await sql.close();
    await store.close();
  });
});

describe.each(ENGINES)('a new database, on %s', (engine) => {
  it('RD12: has a key of its own from the start, and keeps it', async () => {
    const secrets = new Set<string>();
    for (let i = 0; i < 2; i += 1) {
      await using database = await createDatabase(engine);
      for (let start = 0; start < 2; start += 1) {
        const store = await openOn(database);
        const found = await store.listTokenSecrets();
        await store.close();
        expect(found.map(({ length }) => length)).toEqual([32]);
        secrets.add(Buffer.from(found[0]!).toString('hex'));
      }
    }
    expect(secrets.size).toBe(2);
  });
});
