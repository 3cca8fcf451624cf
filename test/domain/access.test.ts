import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { includesRole, isSecret, newSecret, ROLES, secretDigest, unauthenticated } from '../../src/domain/access.ts';

describe('the secret of an API key', () => {
  it('is anb_, 43 random characters and a checksum, and never repeats', () => {
    const secrets = new Set(Array.from({ length: 1000 }, newSecret));
    expect(secrets.size).toBe(1000);
    for (const secret of secrets) {
      expect(secret).toMatch(/^anb_[0-9A-Za-z]{49}$/);
      expect(isSecret(secret)).toBe(true);
    }
  });

  it('is recognised as mistyped, whichever character is wrong', () => {
    const characters = [...'0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_ -'];
    fc.assert(
      fc.property(fc.constant(0).map(newSecret), fc.nat(52), fc.constantFrom(...characters), (secret, at, wrong) => {
        fc.pre(secret[at] !== wrong);
        expect(isSecret(`${secret.slice(0, at)}${wrong}${secret.slice(at + 1)}`)).toBe(false);
      }),
    );
  });

  it('is stored as its SHA-256', () => {
    expect(secretDigest('abc').toString('hex')).toBe(
      'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad',
    );
  });

  it('appears in no error', () => {
    const secret = newSecret();
    for (const fault of ['missing', 'malformed', 'unknown', 'revoked', 'expired', 'repeated'] as const)
      expect(JSON.stringify(unauthenticated(fault))).not.toContain(secret.slice(4));
  });
});

describe('roles', () => {
  it('include the ones before them', () => {
    for (const [i, held] of ROLES.entries())
      for (const [j, needed] of ROLES.entries()) expect(includesRole(held, needed)).toBe(i >= j);
  });
});
