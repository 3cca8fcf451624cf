import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { newSecret, secretDigest } from '../../src/domain/access.ts';
import type { NewApiKey } from '../../src/store/contract/key.ts';
import { describeStore } from './on_store.ts';

function newKey(more: Partial<NewApiKey> = {}): NewApiKey {
  const digest = secretDigest(newSecret());
  return {
    id: randomUUID(),
    name: 'worker',
    role: 'WORK',
    namespaces: ['a', 'b'],
    digest,
    validMs: undefined,
    ...more,
  };
}

describeStore('API keys', (on) => {
  it('N2: are found by the digest of their secret, with what they allow', async () => {
    const key = newKey({ validMs: 60_000n });
    const made = await on.store.createKey(key);
    expect(made).toMatchObject({ id: key.id, name: 'worker', role: 'WORK', namespaces: ['a', 'b'] });
    expect(made.expireTime).toBe(made.createTime + 60_000_000_000n);
    expect(await on.store.findKey(key.digest)).toEqual(made);
    expect(await on.store.findKey(secretDigest('another'))).toBeUndefined();
  });

  it('N2: are listed by pages, in the order of their ids', async () => {
    const ids = [newKey(), newKey(), newKey()].map((key) => key.id).sort();
    for (const id of ids) await on.store.createKey(newKey({ id }));
    const after = await on.store.listKeys({ limit: 1000, after: ids[0] });
    expect(after.map(({ id }) => id).filter((id) => ids.includes(id))).toEqual(ids.slice(1));
    expect(await on.store.listKeys({ limit: 1, after: undefined })).toHaveLength(1);
  });

  it('N2: are revoked once: the first time counts, and they are no longer valid', async () => {
    const [one, other] = [newKey(), newKey()];
    for (const key of [one, other]) await on.store.createKey(key);
    const ids = [one.id, other.id, randomUUID()];
    expect(await on.store.findValidKeys(ids)).toEqual(new Set([one.id, other.id]));
    const revoked = await on.store.revokeKey(one.id);
    expect(revoked.revokeTime).toBeGreaterThanOrEqual(revoked.createTime);
    expect(await on.store.revokeKey(one.id)).toEqual(revoked);
    expect(await on.store.findKey(one.digest)).toEqual(revoked);
    expect(await on.store.findValidKeys(ids)).toEqual(new Set([other.id]));
    expect(await on.store.findValidKeys([])).toEqual(new Set());
  });

  it('N2: that do not exist cannot be revoked', async () => {
    const id = randomUUID();
    await expect(on.store.revokeKey(id)).rejects.toMatchObject({
      reason: 'API_KEY_NOT_FOUND',
      metadata: { key_id: id },
    });
  });
});
