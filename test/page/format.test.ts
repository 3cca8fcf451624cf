import { describe, expect, it } from 'vitest';
import { addressOf, changedAddress, parseAddress, stepOf } from '../../page/src/address.ts';
import { ago, bytes, count, counted, duration, nameOf, number, signed, visible } from '../../page/src/format.ts';

describe('numbers and times of the page', () => {
  it.each([
    [undefined, '–'],
    [0, '0'],
    [-0, '0'],
    [0.012345, '0.01235'],
    [-0.00001234, '−1.23e−5'],
    [500, '500'],
    [123456, '123,456'],
    [-1234567, '−1.235 M'],
    [1e300, '1.00e300'],
    [Number.NaN, 'NaN'],
    [Number.NEGATIVE_INFINITY, '−∞'],
  ])('writes %s as %s', (value, text) => {
    expect(number(value)).toBe(text);
  });

  it('writes gains with their sign', () => {
    expect([1.5, 0, -1.5].map((each) => signed(each))).toEqual(['+1.5', '0', '−1.5']);
  });

  it.each([
    [0.25, '0.3 s'],
    [45, '45 s'],
    [90, '1 min 30 s'],
    [7800, '2 h 10 min'],
    [172800, '2 d'],
  ])('writes %s seconds as %s', (seconds, text) => {
    expect(duration(seconds)).toBe(text);
  });

  it('writes times relative to now, and those of a clock that is ahead as dates', () => {
    const now = new Date('2026-01-02T00:00:00Z');
    expect(ago(new Date('2026-01-01T23:59:58Z'), now)).toBe('now');
    expect(ago(new Date('2026-01-01T21:00:00Z'), now)).toBe('3 h ago');
    expect(ago(new Date('2027-01-01T00:00:00Z'), now)).toBe('2027-01-01');
  });

  it('writes sizes and counts', () => {
    expect([bytes(1023), bytes(1536), bytes(5 * 1024 ** 2)]).toEqual(['1023 B', '1.5 KiB', '5 MiB']);
    expect([counted(1n, 'step'), counted(1200, 'step')]).toEqual(['1 step', '1,200 steps']);
  });

  it('groups digits as the locale does', () => {
    for (const value of [0, 7, 999, 1000, 12_345, 999_999, 1_000_000, 2 ** 53 - 1, -1234, 1234.5, 2n ** 63n - 1n]) {
      expect(count(value)).toBe(value.toLocaleString('en'));
    }
    expect([number(123_456_789_012, 6), number(1_234_567, 6)]).toEqual(['123,457 M', '1.235 M']);
  });

  it('makes controls of direction and lone surrogates visible', () => {
    expect(visible('a\u202eb\ud800')).toBe('a\ufffdb\ufffd');
    expect(nameOf({ id: '0199f3a2-7c11-7d2e-8a4b-0123456789ab', name: '' })).toBe('…456789ab');
  });
});

describe('the address of the page', () => {
  it('names the view and the id', () => {
    const shown = ['/', '/runs/a', '/runs/a/groups/b%2Fc', '/trees/a', '/rollouts/a', '/compare', '/search', '/x'];
    expect(shown.map((path) => parseAddress(path, '')).map(({ view, id }) => [view, id])).toEqual([
      ['home', ''],
      ['run', 'a'],
      ['group', 'b/c'],
      ['tree', 'a'],
      ['rollout', 'a'],
      ['compare', ''],
      ['search', ''],
      ['unknown', ''],
    ]);
    expect(parseAddress('/trees/%E0%A4', '').id).toBe('%E0%A4');
  });

  it('keeps what is shown in its query, without values that are not set', () => {
    expect(addressOf('/trees/a', { at: 'b', step: 0, find: '', closed: false, value: undefined })).toBe(
      '/trees/a?at=b&step=0',
    );
    expect(changedAddress('/trees/a', '?at=b&step=3', { step: 4n, at: undefined })).toBe('/trees/a?step=4');
    expect(['12', '-1', '1e3', '', null].map(stepOf)).toEqual([12, undefined, undefined, undefined, undefined]);
  });
});
