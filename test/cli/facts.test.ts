import { create, type DescField, type DescMessage, type MessageShape, ScalarType } from '@bufbuild/protobuf';
import { reflect } from '@bufbuild/protobuf/reflect';
import pc from 'picocolors';
import { expect, it } from 'vitest';
import { RolloutSchema } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { type Run, RunSchema } from '../../gen/es/anabranch/v1/run_pb.js';
import { otherFacts, runReport } from '../../src/cli/run_report.ts';

const OPTIONS = { columns: 200, paint: pc.createColors(false) };

/** Ids that say nothing to a reader, and the overrides, which mark lines of the config. */
const NOT_SHOWN = ['experiment_id', 'tree_id', 'config_overrides_json'];

function drawnRun(run: Run): string[] {
  const none = { progress: undefined, stages: [], earlierStages: false, series: [], tree: [], keys: [] };
  return runReport({ ...none, rollouts: [], moreRollouts: false, run }, { ...OPTIONS, stages: 0 });
}

/** A message with the name of each text field as its value. */
function filled<Desc extends DescMessage>(schema: Desc): MessageShape<Desc> {
  const message = create(schema);
  const reflected = reflect(schema, message);
  for (const field of textsOf(schema)) {
    reflected.set(field, field.name.endsWith('_json') ? `{"the ${field.name}":1}` : `the ${field.name}`);
  }
  return message;
}

function textsOf({ fields }: DescMessage): DescField[] {
  return fields.filter(({ fieldKind, scalar }) => fieldKind === 'scalar' && scalar === ScalarType.STRING);
}

it('the page of a run shows every text field', () => {
  const page = drawnRun(filled(RunSchema)).join('\n');
  const missing = textsOf(RunSchema).filter(({ name }) => !page.includes(`the ${name}`));
  expect(missing.map(({ name }) => name).sort()).toEqual([...NOT_SHOWN].sort());
});

it('fields without a drawing of their own appear under their names, by their kinds', () => {
  const rollout = create(RolloutSchema, {
    modelUri: 's3://model',
    priority: -3,
    attemptTimeout: { seconds: 90n },
    labels: { a: 'b' },
    metadataJson: '{"a":1}',
    createTime: { seconds: 1n },
  });
  expect(otherFacts(RolloutSchema, rollout, new Set(['createTime']))).toEqual([
    ['labels', '{"a":"b"}'],
    ['priority', '-3'],
    ['model uri', 's3://model'],
    ['metadata', '{"a":1}'],
    ['attempt timeout', '90s'],
  ]);
});
