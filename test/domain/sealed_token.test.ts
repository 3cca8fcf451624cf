import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { openToken, sealToken, tokenKeyOf } from '../../src/domain/sealed_token.ts';

const KEY = tokenKeyOf(randomBytes(32));
const OTHER = tokenKeyOf(randomBytes(32));
const TEXT = '["12345","2026-11-29T10:00:00Z","Ä name"]';

const nonceOf = (token: string) => Buffer.from(token, 'base64url').subarray(0, 12).toString('hex');

describe('RD12: a sealed token', () => {
  it('opens with its key and binding, whatever its text is', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), fc.string(), (text, binding) => {
        expect(openToken([KEY], sealToken(KEY, text, binding), binding)).toBe(text);
      }),
    );
  });

  it('opens with any of several keys, and without its key with none', () => {
    const token = sealToken(KEY, TEXT, 'query');
    expect(openToken([OTHER, KEY], token, 'query')).toBe(TEXT);
    expect(openToken([OTHER], token, 'query')).toBe(undefined);
    expect(openToken([], token, 'query')).toBe(undefined);
  });

  it('does not open with another binding', () => {
    const token = sealToken(KEY, TEXT, 'query');
    for (const other of ['', 'quer', 'query2']) expect(openToken([KEY], token, other)).toBe(undefined);
  });

  it('does not open if any bit of it differs', () => {
    const sealed = Buffer.from(sealToken(KEY, TEXT, 'query'), 'base64url');
    for (let bit = 0; bit < 8 * sealed.length; bit += 1) {
      const changed = Buffer.from(sealed);
      changed[bit >> 3]! ^= 1 << (bit & 7);
      expect(openToken([KEY], changed.toString('base64url'), 'query'), `bit ${bit}`).toBe(undefined);
    }
  });

  it('does not open if it is shorter or longer, or is another text for the same bytes', () => {
    const token = sealToken(KEY, `${TEXT}.`, 'query');
    for (let length = 0; length < token.length; length += 1) {
      expect(openToken([KEY], token.slice(0, length), 'query')).toBe(undefined);
      expect(openToken([KEY], token.slice(token.length - length), 'query')).toBe(undefined);
    }
    const bytes = Buffer.from(token, 'base64url');
    const last = String.fromCharCode(token.charCodeAt(token.length - 1) + 1);
    const same = [`${token}=`, `${token} `, ` ${token}`, `${token.slice(0, -1)}${last}`, bytes.toString('base64')];
    for (const text of [...same, `${token}A`, `${token}AAAA`, `AAAA${token}`]) {
      expect(openToken([KEY], text, 'query'), text).toBe(undefined);
    }
    expect(same.filter((text) => Buffer.from(text, 'base64url').equals(bytes)).length).toBeGreaterThan(2);
  });

  it('has a nonce that follows from key, text and binding: no two instances use one for different texts', () => {
    const token = sealToken(KEY, TEXT, 'query');
    expect(sealToken(KEY, TEXT, 'query')).toBe(token);
    const others = [
      sealToken(KEY, `${TEXT} `, 'query'),
      sealToken(KEY, TEXT, 'query2'),
      sealToken(OTHER, TEXT, 'query'),
    ];
    expect(new Set([token, ...others].map(nonceOf)).size).toBe(4);
    // Text and binding are not confused.
    expect(nonceOf(sealToken(KEY, 'bc', 'a'))).not.toBe(nonceOf(sealToken(KEY, 'c', 'ab')));
  });
});
