import type { Progress } from '../../domain/progress.ts';
import type { Run } from '../../domain/run.ts';
import type { BookView } from '../../store/contract/experiment.ts';

/** No fewer bytes than rows take when encoded: for answers that must stay below a limit (RD3). */

export function runBytes(run: Run, view: BookView): number {
  const { name, description, experiment, statusMessage, phase, plan } = run;
  let bytes = 640 + sum([name, description, experiment.name, statusMessage, phase]);
  bytes += 64 * (plan?.stagePlans.length ?? 0) + pairsBytes(run.labels) + namesBytes(run.metrics);
  if (view === 'BASIC') return bytes;
  const { configJson, configOverridesJson, removedConfigPaths, metadataJson, resultJson } = run;
  return bytes + 16 + sum([configJson, configOverridesJson, metadataJson, resultJson]) + pathsBytes(removedConfigPaths);
}

export function progressBytes({ openStages }: Pick<Progress, 'openStages'>): number {
  return openStages.reduce((bytes, { phase }) => bytes + 128 + utf8(phase), 512);
}

export function pairsBytes(map: ReadonlyMap<string, string>): number {
  let bytes = 0;
  for (const [key, value] of map) bytes += 16 + utf8(key) + utf8(value);
  return bytes;
}

export function namesBytes(map: ReadonlyMap<string, number>): number {
  let bytes = 0;
  for (const key of map.keys()) bytes += 24 + utf8(key);
  return bytes;
}

export function pathsBytes(paths: readonly string[]): number {
  return 4 * paths.length + sum(paths);
}

export function sum(texts: readonly string[]): number {
  return texts.reduce((bytes, text) => bytes + utf8(text), 0);
}

export function utf8(text: string): number {
  return Buffer.byteLength(text);
}
