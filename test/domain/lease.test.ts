import { describe, expect, it } from 'vitest';
import { beginLease, leaseAt, renewLease } from '../../src/domain/lease.ts';

const S = 1_000_000_000n;
const at = (seconds: number) => BigInt(seconds) * S;
const paused = (start: number, end?: number) => ({ start: at(start), end: end === undefined ? undefined : at(end) });

describe('leases', () => {
  const lease = beginLease(at(100), 60_000n, undefined, []);

  it('Q3: end after the last claim, heartbeat or append, whichever is latest', () => {
    expect(lease.end).toBe(at(160));
    expect(leaseAt(lease, at(90), []).end).toBe(at(160));
    expect(leaseAt(lease, at(130), []).end).toBe(at(190));
    expect(renewLease(lease, at(110), 5_000n, []).end).toBe(at(115));
  });

  it('Q3: never end after the timeout of the attempt', () => {
    const bounded = beginLease(at(100), 60_000n, 90_000n, []);
    expect(bounded.end).toBe(at(160));
    expect(leaseAt(bounded, at(150), []).end).toBe(at(190));
    expect(renewLease(bounded, at(150), 60_000n, []).end).toBe(at(190));
    expect(beginLease(at(100), 60_000n, 20_000n, []).end).toBe(at(120));
  });

  it('Q3: are suspended while the run is paused', () => {
    const pauses = [paused(120, 500)];
    expect(leaseAt(lease, undefined, pauses, at(505)).end).toBe(at(540));
    expect(leaseAt(lease, at(110), pauses, at(505)).end, 'an append before the pause').toBe(at(550));
    expect(leaseAt(lease, at(300), pauses, at(505)).end, 'an append within it').toBe(at(560));
    expect(leaseAt(lease, at(504), pauses, at(505)).end, 'an append after it').toBe(at(564));
    const now = leaseAt(lease, undefined, [paused(120)], at(505));
    expect(now.end - at(505), 'what is left stays the same through the pause').toBe(at(40));
  });

  it('Q3: the timeout of the attempt is suspended too, whatever heartbeats arrive meanwhile', () => {
    const bounded = beginLease(at(100), 600_000n, 90_000n, [paused(10, 20)]);
    const renewed = renewLease(bounded, at(200), 600_000n, [paused(10, 20), paused(120)]);
    const pauses = [paused(10, 20), paused(120, 500)];
    expect(leaseAt(renewed, undefined, pauses).attemptEnd).toBe(at(570));
    expect(leaseAt(renewed, at(505), pauses).end).toBe(at(570));
  });

  it('are the same if they are computed in between', () => {
    const early = [paused(120, 130), paused(140)];
    const all = [paused(120, 130), paused(140, 200), paused(210, 220)];
    const once = leaseAt(lease, at(125), all, at(230));
    expect(leaseAt(leaseAt(lease, at(125), early, at(150)), at(125), all, at(230))).toEqual(once);
    expect(once.end).toBe(at(185 + 5 + 60 + 10));
  });
});
