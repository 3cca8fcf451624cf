/**
 * Writes the rules of the fields that recorders write into gen/python, so that a recorder can keep them before the
 * server checks them. Bounds that are limits of the service have the name of the limit, and must be equal to it.
 *
 * Part of `npm run generate`, after gen/es.
 */
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { type DescField, type DescMessage, getOption, hasOption } from '@bufbuild/protobuf';
import { field as ruleOption, type StringRules } from '@bufbuild/protovalidate/gen/buf/validate/validate_pb.js';
import {
  CompleteRolloutRequestSchema,
  FailRolloutRequestSchema,
  ReleaseRolloutRequestSchema,
} from '../gen/es/anabranch/v1/rollout_service_pb.js';
import { MetricPointSchema } from '../gen/es/anabranch/v1/run_pb.js';
import { CancelRunRequestSchema, FailRunRequestSchema } from '../gen/es/anabranch/v1/run_service_pb.js';
import { StepSchema } from '../gen/es/anabranch/v1/trajectory_pb.js';
import { SealSchema, StepTagSchema } from '../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../src/domain/limits.ts';

const FILE = path.resolve(import.meta.dirname, '../gen/python/anabranch/v1/rules.py');

/** What recorders write. */
const MESSAGES = [
  StepSchema,
  StepTagSchema,
  SealSchema,
  MetricPointSchema,
  CompleteRolloutRequestSchema,
  FailRolloutRequestSchema,
  ReleaseRolloutRequestSchema,
  FailRunRequestSchema,
  CancelRunRequestSchema,
];

/** The limits that bounds of fields are. */
const LIMIT_OF = new Map<string, keyof typeof LIMITS>([
  ['Step.actions.max_items', 'stepParts'],
  ['Step.observations.max_items', 'stepParts'],
  ['Step.metrics.max_pairs', 'metrics'],
  ['Step.metrics.keys.max_bytes', 'metricKeyBytes'],
  ['Step.states.max_items', 'statesPerStep'],
  ['Step.labels.max_pairs', 'stepLabels'],
  ['Step.labels.keys.max_bytes', 'labelKeyBytes'],
  ['Step.labels.values.max_bytes', 'labelValueBytes'],
  ['Action.type.max_bytes', 'typeBytes'],
  ['Action.name.max_bytes', 'actionNameBytes'],
  ['Action.call_id.max_bytes', 'callIdBytes'],
  ['Observation.type.max_bytes', 'typeBytes'],
  ['Observation.call_id.max_bytes', 'callIdBytes'],
  ['Content.uri.max_bytes', 'uriBytes'],
  ['Content.media_type.max_bytes', 'mediaTypeBytes'],
  ['Tensor.dtype.max_bytes', 'dtypeBytes'],
  ['Tensor.shape.max_items', 'tensorDimensions'],
  ['StepState.name.max_bytes', 'stateNameBytes'],
  ['StepState.media_type.max_bytes', 'mediaTypeBytes'],
  ['MetricPoint.key.max_bytes', 'seriesNameBytes'],
]);

const unmatched = new Set(LIMIT_OF.keys());
const lines = messagesWithin(MESSAGES).flatMap((message) =>
  message.fields.map((field) => [`${message.name}.${field.name}`, rulesOf(field)] as const),
);
const entries = lines
  .filter(([, rules]) => rules.length > 0)
  .map(([name, rules]) => {
    const members = rules.map(([rule, value]) => `"${rule}": ${bound(`${name}.${rule}`, value)}`);
    return `    "${name}": {${members.join(', ')}},\n`;
  });
if (unmatched.size > 0) throw new Error(`the protos have no rules ${[...unmatched].join(', ')}`);
await writeFile(
  FILE,
  `"""The rules of the fields that recorders write. Bounds are numbers, or names of limits. Generated from proto/."""

RULES: dict[str, dict[str, int | str]] = {
${entries.join('')}}
`,
);

/** The messages, and all that their fields contain. */
function messagesWithin(roots: readonly DescMessage[]): DescMessage[] {
  const found = new Set<DescMessage>(roots);
  for (const message of found) {
    for (const { message: inner } of message.fields) if (inner?.file.proto.package === 'anabranch.v1') found.add(inner);
  }
  return [...found];
}

/** The rules of texts, and of the lengths of lists and maps: a recorder keeps all others by itself. */
function rulesOf(field: DescField): [string, number | string][] {
  if (!hasOption(field, ruleOption)) return [];
  const { type } = getOption(field, ruleOption);
  switch (type.case) {
    case 'string':
      return textRules(type.value, '');
    case 'repeated':
      return [['max_items', Number(type.value.maxItems)]];
    case 'map': {
      const { maxPairs, keys, values } = type.value;
      return [
        ['max_pairs', Number(maxPairs)],
        ...(keys?.type.case === 'string' ? textRules(keys.type.value, 'keys.') : []),
        ...(values?.type.case === 'string' ? textRules(values.type.value, 'values.') : []),
      ];
    }
    default:
      return [];
  }
}

function textRules({ minBytes, maxBytes, pattern }: StringRules, prefix: string): [string, number | string][] {
  const rules: [string, number | string][] = [];
  if (minBytes > 0n) rules.push([`${prefix}min_bytes`, Number(minBytes)]);
  if (maxBytes > 0n) rules.push([`${prefix}max_bytes`, Number(maxBytes)]);
  if (pattern !== '') rules.push([`${prefix}pattern`, pattern]);
  return rules;
}

function bound(rule: string, value: number | string): string {
  const limit = LIMIT_OF.get(rule);
  if (limit === undefined) return JSON.stringify(value);
  if (LIMITS[limit] !== value) throw new Error(`${rule} is ${value}, but ${limit} is ${LIMITS[limit]}`);
  unmatched.delete(rule);
  return `"${limit}"`;
}
