import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { newSecret, secretDigest, unauthenticated } from '../../src/domain/access.ts';
import type { AnabranchError } from '../../src/domain/errors.ts';
import type { TokenVerifier } from '../../src/domain/identity.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { Credentials } from '../../src/stream/credentials.ts';
import { createDrain } from '../../src/stream/drain.ts';
import { logger, openOn } from '../store/on_store.ts';
import type { TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

describe('the keys that callers have shown', () => {
  let database: TestDatabase;
  let store: Store;
  beforeAll(async () => {
    database = await createMigratedDatabase('sqlite');
    store = await openOn(database);
  });
  afterAll(async () => {
    await store?.close();
    await database?.drop();
  });
  beforeEach(() => void vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance', 'Date'] }));
  afterEach(() => void vi.useRealTimers());

  async function newKey(validMs?: bigint) {
    const [id, secret] = [randomUUID(), newSecret()];
    const digest = secretDigest(secret);
    await store.createKey({ id, name: 'agent', role: 'WORK', namespaces: ['a'], digest, validMs });
    return { id, secret };
  }

  /** Counts what is asked of the store, and lets checks fail while `isDown`. */
  function credentialsOf() {
    const state = { lookUps: 0, checks: 0, isDown: false, last: Promise.resolve<unknown>(undefined) };
    const counted = wrappedStore(store, {
      findKey: (digest) => {
        state.lookUps += 1;
        return store.findKey(digest);
      },
      findValidKeys: (ids) => {
        state.checks += 1;
        const found = state.isDown ? Promise.reject(new Error('the database is down')) : store.findValidKeys(ids);
        state.last = found.catch(() => undefined);
        return found;
      },
    });
    const drain = createDrain();
    const settings = { keyCheckMs: 2000, keyTrustMs: 5000 };
    return { state, drain, credentials: new Credentials({ store: counted, verifiers: {}, logger, drain, settings }) };
  }

  /** Begins the next check, and returns when it has ended. */
  const nextCheck = async (state: { checks: number; last: Promise<unknown> }) => {
    const before = state.checks;
    vi.advanceTimersByTime(2000);
    expect(state.checks).toBe(before + 1);
    await state.last;
    await new Promise((resolve) => setImmediate(resolve));
  };

  it('N2: are looked up once, however many calls show them at once, and cost nothing afterwards', async () => {
    const { secret } = await newKey();
    const { state, credentials } = credentialsOf();
    const first = await Promise.all([credentials.of(secret), credentials.of(secret), credentials.of(secret)]);
    expect(new Set(first).size).toBe(1);
    expect(credentials.of(secret)).toBe(first[0]);
    expect(state).toMatchObject({ lookUps: 1, checks: 0 });
    await credentials.stop();
  });

  it('MS5: that are not known are looked up for addresses in turn', async () => {
    const gate = Promise.withResolvers<void>();
    const asked: string[] = [];
    const names = new Map<string, string>();
    const slow = wrappedStore(store, {
      findKey: async (digest) => {
        asked.push(names.get(Buffer.from(digest).toString('hex'))!);
        await gate.promise;
        return undefined;
      },
    });
    const drain = createDrain();
    const settings = { keyCheckMs: 2000, keyTrustMs: 5000 };
    const credentials = new Credentials({ store: slow, verifiers: {}, logger, drain, settings });
    const show = async (address: string) => {
      const secret = newSecret();
      names.set(secretDigest(secret).toString('hex'), address);
      await Promise.resolve(credentials.of(secret, () => address)).catch(() => undefined);
    };
    const all = [...Array.from({ length: 40 }, () => show('many')), show('one')];
    gate.resolve();
    await Promise.all(all);
    expect(asked).toHaveLength(41);
    expect(asked.indexOf('one')).toBe(17);
    await credentials.stop();
  });

  it('N2: that do not exist are refused without another look for two seconds', async () => {
    const { state, credentials } = credentialsOf();
    const secret = newSecret();
    await expect(credentials.of(secret)).rejects.toMatchObject({ metadata: { fault: 'unknown' } });
    expect(() => credentials.of(secret)).toThrow('does not exist');
    expect(() => credentials.of('anb_nothing')).toThrow('copied whole');
    expect(state.lookUps).toBe(1);
    vi.advanceTimersByTime(2001);
    await expect(credentials.of(secret)).rejects.toMatchObject({ metadata: { fault: 'unknown' } });
    expect(state.lookUps).toBe(2);
    await credentials.stop();
  });

  it('N2: are looked up 16 at a time, however many unknown ones are shown, and each gets its answer', async () => {
    let [running, most] = [0, 0];
    const slow = wrappedStore(store, {
      findKey: async (digest) => {
        running += 1;
        most = Math.max(most, running);
        await new Promise((resolve) => setImmediate(resolve));
        running -= 1;
        return store.findKey(digest);
      },
    });
    const settings = { keyCheckMs: 2000, keyTrustMs: 5000 };
    const credentials = new Credentials({ store: slow, verifiers: {}, logger, drain: createDrain(), settings });
    const shown = Array.from({ length: 100 }, async () => credentials.of(newSecret()));
    // While places are handed over, others come and find none.
    await new Promise((resolve) => setImmediate(resolve));
    for (let i = 0; i < 100; i += 1) shown.push((async () => credentials.of(newSecret()))());
    const answers = await Promise.allSettled(shown);
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 'rejected'));
    expect(most).toBe(16);
    await credentials.stop();
  });

  it('N2: end their streams at the next check after they were revoked', async () => {
    const { id, secret } = await newKey();
    const { state, credentials } = credentialsOf();
    const { drain } = await credentials.of(secret);
    await store.revokeKey(id);
    expect(drain.begun).toBe(false);
    await nextCheck(state);
    expect(() => drain.throwIfBegun()).toThrow('was revoked');
    await expect(credentials.of(secret)).rejects.toMatchObject({ metadata: { fault: 'revoked' } });
    await credentials.stop();
  });

  it('N2: end with the server, with its reason', async () => {
    const { secret } = await newKey();
    const { drain: ofServer, credentials } = credentialsOf();
    const { drain } = await credentials.of(secret);
    ofServer.begin();
    expect(() => drain.throwIfBegun()).toThrow('shutting down');
    await credentials.stop();
  });

  it('N2: are not trusted when the database could not be asked for five seconds, until it can', async () => {
    const { secret } = await newKey();
    const { state, credentials } = credentialsOf();
    const credential = await credentials.of(secret);
    state.isDown = true;
    for (let check = 1; check <= 3; check += 1) await nextCheck(state);
    expect(() => credentials.of(secret)).toThrow('cannot ask its database');
    const again = credential.checked();
    expect(again).toBeInstanceOf(Promise);
    expect(credential.drain.begun).toBe(false);
    state.isDown = false;
    await nextCheck(state);
    await again;
    expect(credentials.of(secret)).toBe(credential);
    expect(credential.checked()).toBeUndefined();
    await credentials.stop();
  });

  it('N2: that are tokens are verified 16 at a time and once each, and judged anew when their proof ends', async () => {
    const state = { running: 0, most: 0, verified: 0, fault: undefined as AnabranchError | undefined };
    const tokens: TokenVerifier = {
      keysFor: () => undefined,
      verify: async (token) => {
        state.verified += 1;
        state.running += 1;
        state.most = Math.max(state.most, state.running);
        await new Promise((resolve) => setImmediate(resolve));
        state.running -= 1;
        const identity = { name: token, role: 'READ', namespaces: ['a'], expireTime: undefined } as const;
        return { identity, fault: () => state.fault };
      },
    };
    const settings = { keyCheckMs: 2000, keyTrustMs: 5000 };
    const credentials = new Credentials({ store, verifiers: { tokens }, logger, drain: createDrain(), settings });
    const shown = Array.from({ length: 100 }, (_, i) => `a.${i}.c`);
    const all = await Promise.all(shown.flatMap((token) => [credentials.of(token), credentials.of(token)]));
    expect(state).toMatchObject({ most: 16, verified: 100 });
    expect(shown.map((token) => credentials.of(token))).toEqual(all.filter((_, i) => i % 2 === 0));
    state.fault = unauthenticated('changed');
    const again = credentials.of('a.0.c');
    expect(() => all[0]!.drain.throwIfBegun()).toThrow('has changed meanwhile');
    state.fault = undefined;
    expect((await again).identity.name).toBe('a.0.c');
    expect(state.verified).toBe(101);
    expect(credentials.of('a.0.c')).toBe(await again);
    await credentials.stop();
  });
});
