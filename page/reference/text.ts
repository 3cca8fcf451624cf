import type { EnumEntry, MessageEntry, Reference, RpcEntry } from './model.ts';

export const TITLE = 'Anabranch';
export const SUMMARY = 'The trajectory store for agents: every step durable, every state a branch point.';

const CURL = `curl -s http://127.0.0.1:50051/anabranch.v1.TrajectoryService/CreateTrajectory \\
  -H 'content-type: application/json' -d '{"name": "first"}'`;

/** What both forms of the reference begin with. */
export const INTRODUCTION: readonly string[] = [
  'The server speaks gRPC, gRPC-Web and Connect on one port. Every unary RPC is also a POST with JSON. Field names are in camel case there, and 64-bit integers, durations and times are strings:',
  CURL,
  'Errors have a `google.rpc.ErrorInfo` with a reason of the list at the end. Each RPC names its reasons.',
];

/** Writes the reference as text in the style of llms.txt: Markdown without tables. */
export function referenceText({ services, messages, enums, reasons }: Reference): string {
  const [first = '', curl = '', last = ''] = INTRODUCTION;
  const parts = [
    `# ${TITLE}`,
    `> ${SUMMARY}`,
    `This is the reference of the API. ${first}`,
    `\`\`\`sh\n${curl}\n\`\`\``,
    last,
    `Services: ${services.map(({ name }) => name).join(', ')}.`,
  ];
  for (const { name, comment, rpcs } of services) parts.push(`## ${name}`, comment, ...rpcs.flatMap(rpcText));
  parts.push('## Messages', ...messages.flatMap((message) => [`### ${message.name}`, ...messageText(message)]));
  parts.push('## Enums', ...enums.flatMap((each) => [`### ${each.name}`, ...enumText(each)]));
  parts.push('## Errors', ...enumText(reasons));
  return `${parts.filter((part) => part !== '').join('\n\n')}\n`;
}

function rpcText({ name, role, path, kind, comment, errors, request, response, example }: RpcEntry): string[] {
  return [
    `### ${name}`,
    comment,
    `- POST ${path}, ${kind}\n- role: ${role}\n- request: ${request.name}\n- response: ${response.name}`,
    errors === '' ? '' : `Errors: ${errors}`,
    `\`\`\`json\n${JSON.stringify(JSON.parse(example))}\n\`\`\``,
    `${request.name}:`,
    ...messageText(request),
    `${response.name}:`,
    ...messageText(response),
  ];
}

function messageText({ comment, fields }: MessageEntry): string[] {
  const lines = fields.map((field) => {
    const kind = field.oneof === undefined ? field.type : `${field.type}, one of ${field.oneof}`;
    return `- ${field.name} (${kind}): ${oneLine(field.comment)}`;
  });
  return [comment, lines.length === 0 ? 'No fields.' : lines.join('\n')];
}

function enumText({ comment, values }: EnumEntry): string[] {
  return [comment, values.map(({ name, number, comment }) => `- ${name} (${number}): ${oneLine(comment)}`).join('\n')];
}

function oneLine(text: string): string {
  return text.replaceAll('\n', ' ');
}
