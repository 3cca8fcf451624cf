import { describe, expect, it } from 'vitest';
import { createDatabase, ENGINES } from '../support/database.ts';
import { describeStore, openOn } from './on_store.ts';
import { addTokenKey } from './token_keys.ts';

describeStore('keys of tokens', (on) => {
  it('RD12: are listed from the newest on', async () => {
    const list = async () => (await on.store.listTokenSecrets()).map((secret) => Buffer.from(secret));
    const [first] = await list();
    const [second, third] = [await addTokenKey(on.sql), await addTokenKey(on.sql)];
    expect(await list()).toEqual([third, second, first]);
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
