"""Sixty forms in which people write secrets, with values made at run time: no scanner finds one in this file."""

from base64 import b64encode
from collections.abc import Callable, Iterator
from random import Random
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from urllib.parse import quote

HEX, MIXED, UPPER = "0123456789abcdef", ascii_letters + digits, ascii_uppercase + digits


class Maker:
    """Makes one secret: random characters that each form puts behind the prefix of its service."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)

    def __call__(self, length: int, letters: str = MIXED, prefix: str = "") -> str:
        some = "".join(self.random.choice(letters) for _ in range(length - 3))
        return prefix + some[:4] + ("a7b" if letters == HEX else "A7Q") + some[4:]

    def letters(self, length: int, prefix: str) -> str:
        return prefix + "".join(self.random.choice(ascii_letters) for _ in range(length))

    def word(self) -> str:
        return "-".join("".join(self.random.choice(ascii_lowercase) for _ in range(6)) for _ in range(2))

    def jwt(self) -> str:
        return ".".join(["ey" + "J" + self(20), "ey" + "J" + self(60), self(43)])

    def base64(self, length: int) -> str:
        return b64encode(self.random.randbytes(length)).decode()

    def private_key(self, kind: str) -> str:
        lines = [self.base64(48) for _ in range(4)]
        dashes = "-" * 5
        return "\n".join([f"{dashes}BEGIN {kind}PRIVATE KEY{dashes}", *lines, f"{dashes}END {kind}PRIVATE KEY{dashes}"])


# The text of a form has its secret at {}; the second is what the secret is made of.
FORMS: dict[str, tuple[str, Callable[[Maker], str]]] = {
    "password=": ("password={}", lambda m: m(12)),
    "password= after a word": ("word: password={}", lambda m: m(12)),
    "--api_key= after a colon": ("it ran: tool --api_key={} --fast", lambda m: m(16)),
    "--token": ("tool --token {} --fast", lambda m: m(16)),
    "pwd": ("pwd={}", lambda m: m(10)),
    "smtp_pass": ("smtp_pass: {}", lambda m: m(10)),
    "apitoken": ("apitoken={}", lambda m: m(10)),
    "accesskey": ("accesskey: {}", lambda m: m(10)),
    "wandb_key": ("wandb_key={}", lambda m: m(10)),
    "ssh_key": ("ssh_key: {}", lambda m: m(10)),
    "tokens": ("tokens: [one, {}]", lambda m: m(10)),
    "tokens on lines": ("tokens:\n- one\n- {}\n", lambda m: m(10)),
    "JSON": ('{{"client_secret": "{}", "x": 1}}', lambda m: m(12)),
    "JSON in JSON": (r"{{\"api_key\": \"{}\"}}", lambda m: m(12)),
    "export": ("export DB_PASSWORD={}", lambda m: m(12)),
    "AWS secret": ("aws_secret_access_key = {}", lambda m: m.base64(30)),
    "several words": ("passphrase: {}", lambda m: f"correct horse {m(6)}"),
    "quoted words": ('passphrase: "{}"', lambda m: f"correct horse {m(6)}"),
    "mapping": ("credentials: {{user: me, value: {}}}", lambda m: m(10)),
    "list": ("auth=[me, {}]", lambda m: m(10)),
    "connection string": ("Server=db;User Id=me;Password={};Port=1", lambda m: m(12)),
    "Azure account": ("AccountName=me;AccountKey={};EndpointSuffix=core", lambda m: m.base64(64)),
    "netrc": ("machine host login me password {}", lambda m: m(10)),
    "call": ("init(password='{}', x=1)", lambda m: m(10)),
    "not ASCII": ("password: '{}'", lambda m: f"pässwörd-ключ-{m(8)}"),
    "user:password@": ("https://me:{}@host/x", lambda m: m(10)),
    "password with @": ("postgresql://me:{}@db/x", lambda m: f"p@{m(10)}"),
    "token@host": ("https://{}@host/x.git", lambda m: m(24)),
    "without a scheme": ("root:{}@db.example.com", lambda m: m(10)),
    "?token=": ("https://host/x?token={}&y=1", lambda m: m(16)),
    "&api_key=": ("https://host/x?y=1&api_key={}", lambda m: m(16)),
    "?sig=": ("https://host/x?sv=2024&sig={}&se=1", lambda m: quote(m.base64(32), safe="")),
    "X-Amz-Signature": ("https://host/x?X-Amz-Signature={}", lambda m: m(64, HEX)),
    "Slack webhook": ("https://hooks.slack" + ".com/services/{}", lambda m: f"T{m(9, UPPER)}/B{m(9, UPPER)}/{m(24)}"),
    "Authorization: Bearer": ("Authorization: Bearer {}", lambda m: m(24)),
    "Authorization: Basic": ("'Authorization': 'Basic {}'", lambda m: m.base64(18)),
    "X-Api-Key": ("X-Api-Key: {}", lambda m: m(24)),
    "Cookie": ("Cookie: sessionid={}", lambda m: m(24)),
    "private key": ("it is\n{}", lambda m: m.private_key("RSA ")),
    "W&B": ("{}", lambda m: m(40, HEX)),
    "W&B local": ("{}", lambda m: m(40, HEX, "local" + "-")),
    "W&B v1": ("{}", lambda m: m(77, MIXED, "wandb" + "_v1_")),
    "Hugging Face": ("{}", lambda m: m.letters(34, "hf" + "_")),
    "OpenAI": ("{}", lambda m: m(74, MIXED, "sk-" + "proj-") + "T3Blbk" + "FJ" + m(74)),
    "Anthropic": ("{}", lambda m: m(93, MIXED, "sk-" + "ant-api03-") + "AA"),
    "NVIDIA": ("{}", lambda m: m(64, MIXED, "nv" + "api-")),
    "GitHub": ("{}", lambda m: m(36, MIXED, "gh" + "p_")),
    "GitLab": ("{}", lambda m: m(20, MIXED, "gl" + "pat-")),
    "AWS": ("{}", lambda m: m(16, ascii_uppercase + "234567", "AK" + "IA").upper()),
    "Google": ("{}", lambda m: m(35, MIXED, "AI" + "za")),
    "Google OAuth": ("{}", lambda m: m(120, MIXED, "ya" + "29.a0")),
    "Slack": ("{}", lambda m: "xox" + f"b-{m.random.randrange(1000, 9999)}00000000-100000000000-{m(24)}"),
    "Stripe": ("{}", lambda m: m(24, MIXED, "sk" + "_live_")),
    "PyPI": ("{}", lambda m: m(150, MIXED, "py" + "pi-AgEIcHlwaS5vcmc")),
    "npm": ("{}", lambda m: m(36, MIXED, "np" + "m_")),
    "SendGrid": ("{}", lambda m: m(22, MIXED, "S" + "G.") + "." + m(43)),
    "DigitalOcean": ("{}", lambda m: m(64, HEX, "do" + "p_v1_")),
    "Databricks": ("{}", lambda m: m(32, HEX, "da" + "pi")),
    "JSON web token": ("{}", lambda m: m.jwt()),
    "Telegram": ("{}", lambda m: f"1234567{m.random.randrange(10, 99)}0:{m(35)}"),
}


# Keys under which a secret stands alone, and is one by its key.
KEYS = ("api_key", "apitoken", "accesskey", "smtp_pass", "pwd", "wandb_key", "ssh_key", "hf_token", "client_secret")


def under_keys(place: str) -> dict[str, str]:
    """Returns a secret that only its key tells for each of KEYS, half of them not in ASCII."""
    return {key: ("ключ-é-" if i % 2 else "") + Maker(f"{place} {key}").word() for i, key in enumerate(KEYS)}


def planted(place: str) -> Iterator[tuple[str, str, str]]:
    """Yields name, text and secret of every form, another secret for every place."""
    for name, (text, make) in FORMS.items():
        secret = make(Maker(f"{place} {name}"))
        yield name, text.format(secret), secret
