import type { Trajectory } from '../../domain/trajectory.ts';
import type { PageSource } from '../page.ts';

/** Pages of trajectories by key. */
export function trajectorySource(
  fetch: PageSource<Trajectory>['fetch'],
  view: 'BASIC' | 'FULL',
): PageSource<Trajectory> {
  return { fetch, keyOf: ({ ref }) => ref.key, bytesOf: (trajectory) => trajectoryBytes(trajectory, view) };
}

/** At least what the trajectory takes when encoded. */
export function trajectoryBytes(trajectory: Trajectory, view: 'BASIC' | 'FULL'): number {
  let bytes = 512 + utf8(trajectory.name) + utf8(trajectory.taskId) + utf8(trajectory.statusMessage);
  bytes += utf8(trajectory.writerId);
  for (const [key, value] of trajectory.labels) bytes += 16 + utf8(key) + utf8(value);
  for (const key of trajectory.metrics.keys()) bytes += 24 + utf8(key);
  return view === 'FULL' ? bytes + utf8(trajectory.metadataJson) : bytes;
}

function utf8(text: string): number {
  return Buffer.byteLength(text);
}
