import type { EnumEntry, FieldEntry, MessageEntry, Reference, RpcEntry, ServiceEntry } from './model.ts';
import { INTRODUCTION, SUMMARY, TITLE } from './text.ts';

/** Examples above this length are folded. */
const FOLDED = 400;

/** Writes the reference as a document without scripts. */
export function referenceHtml(reference: Reference, styles: readonly string[]): string {
  const { services, messages, enums, reasons } = reference;
  const link = linker(reference);
  const [first = '', curl = '', last = ''] = INTRODUCTION;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>API reference – ${TITLE}</title>
<meta name="description" content="${escaped(SUMMARY)}">
${styles.map((style) => `<link rel="stylesheet" href="${style}">`).join('\n')}
</head>
<body class="reference">
<a class="skip" href="#main">Skip to content</a>
<header class="top">
<a class="brand" href="/"><svg viewBox="0 0 32 32" aria-hidden="true"><path d="M3 21h9c5 0 4-11 9-11h4M12 21h17"/></svg>${TITLE}</a>
<span class="space"></span>
<a class="dim" href="/docs.txt">as text</a>
</header>
<div class="reference-page">
<nav aria-label="contents">
${services.map(serviceContents).join('\n')}
${contents(
  'Messages',
  messages.map(({ name }) => name),
)}
${contents(
  'Enums',
  enums.map(({ name }) => name),
)}
${contents(
  'Errors',
  reasons.values.map(({ name }) => name),
)}
</nav>
<main id="main" tabindex="-1">
<h1>API reference</h1>
<p>${link(first)}</p>
<pre class="code">${escaped(curl)}</pre>
<p>${link(last)}</p>
${services.map((service) => serviceHtml(service, link)).join('\n')}
<section id="Messages"><h2>Messages</h2>
${messages.map((message) => `<section id="${message.name}" class="entry"><h3>${anchor(message.name)}</h3>${messageHtml(message, link)}</section>`).join('\n')}
</section>
<section id="Enums"><h2>Enums</h2>
${enums.map((each) => `<section id="${each.name}" class="entry"><h3>${anchor(each.name)}</h3>${enumHtml(each, link, `${each.name}.`)}</section>`).join('\n')}
</section>
<section id="Errors"><h2>Errors</h2>
${enumHtml(reasons, link, '')}
</section>
</main>
</div>
</body>
</html>
`;
}

type Link = (text: string) => string;

function serviceContents({ name, rpcs }: ServiceEntry): string {
  const items = rpcs.map((rpc) => `<li><a href="#${name}.${rpc.name}">${rpc.name}</a></li>`);
  return `<details open><summary>${name}</summary><ul>${items.join('')}</ul></details>`;
}

function contents(heading: string, names: readonly string[]): string {
  const items = names.map((name) => `<li><a href="#${name}">${name}</a></li>`);
  return `<details><summary>${heading}</summary><ul><li><a href="#${heading}">All</a></li>${items.join('')}</ul></details>`;
}

function serviceHtml({ name, comment, rpcs }: ServiceEntry, link: Link): string {
  const parts = rpcs.map((rpc) => rpcHtml(rpc, name, link));
  return `<section id="${name}"><h2>${anchor(name)}</h2>${prose(comment, link)}\n${parts.join('\n')}\n</section>`;
}

function rpcHtml(rpc: RpcEntry, service: string, link: Link): string {
  const { name, role, path, kind, idempotent, comment, errors, request, response, example } = rpc;
  const id = `${service}.${name}`;
  const call = kind === 'unary' ? `POST ${path}` : path;
  return `<section id="${id}" class="entry rpc">
<h3>${anchor(name, id)} <span class="label">role ${role}</span> <span class="label">${kind}</span>${idempotent ? ' <span class="label">idempotent</span>' : ''}</h3>
<p class="mono dim call">${call}</p>
${prose(comment, link)}
${errors === '' ? '' : `<p class="errors"><strong>Errors</strong> ${link(errors)}</p>`}
<details class="example"${example.length > FOLDED ? '' : ' open'}><summary>Example of ${kind === 'unary' ? 'the request' : 'a message'} as JSON</summary>
<pre class="code">${escaped(example)}</pre></details>
${part(request, link)}
${part(response, link)}
</section>`;
}

function part(message: MessageEntry, link: Link): string {
  return `<section id="${message.name}" class="part"><h4>${anchor(message.name)}</h4>${messageHtml(message, link)}</section>`;
}

function messageHtml({ name, comment, fields }: MessageEntry, link: Link): string {
  if (fields.length === 0) return `${prose(comment, link)}<p class="dim">No fields.</p>`;
  const rows = fields.map((field) => {
    const oneof = field.oneof === undefined ? '' : `<br><span class="dim">one of ${field.oneof}</span>`;
    return `<div id="${name}.${field.name}"><dt><code>${field.name}</code> <span class="type">${typeHtml(field)}</span>${oneof}</dt><dd>${link(field.comment)}</dd></div>`;
  });
  return `${prose(comment, link)}<dl class="fields">${rows.join('\n')}</dl>`;
}

function typeHtml({ type, refersTo }: FieldEntry): string {
  if (refersTo === undefined) return escaped(type);
  return escaped(type).replace(refersTo, `<a href="#${refersTo}">${refersTo}</a>`);
}

function enumHtml({ comment, values }: EnumEntry, link: Link, prefix: string): string {
  const rows = values.map(
    ({ name, number, comment }) =>
      `<div id="${prefix}${name}"><dt><code>${name}</code> <span class="type">${number}</span></dt><dd>${link(comment)}</dd></div>`,
  );
  return `${prose(comment, link)}<dl class="fields">${rows.join('\n')}</dl>`;
}

function anchor(text: string, id = text): string {
  return `<a class="anchor" href="#${id}">${text}</a>`;
}

function prose(text: string, link: Link): string {
  return text === '' ? '' : `<p>${link(text)}</p>`;
}

/** Returns a function that escapes text, and links the names of RPCs, messages, enums and reasons in it. */
function linker({ services, messages, enums, reasons }: Reference): Link {
  const anchors = new Map<string, string>();
  for (const { name } of [...messages, ...enums]) if (/[a-z][A-Z]/.test(name)) anchors.set(name, name);
  for (const service of services) {
    anchors.set(service.name, service.name);
    for (const { name, request, response } of service.rpcs) {
      anchors.set(name, `${service.name}.${name}`);
      for (const each of [request, response]) anchors.set(each.name, each.name);
    }
  }
  for (const { name } of reasons.values) if (name.includes('_')) anchors.set(name, name);
  return (text) =>
    escaped(text)
      .replace(/`([^`]+)`/g, '<code>$1</code>')
      .replace(/\b[A-Z]\w+\b/g, (word) => {
        const id = anchors.get(word);
        return id === undefined ? word : `<a href="#${id}">${word}</a>`;
      });
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}
