//! Whether a server's certificate is believed: not at all, for its authority alone, or for its name too. That the server holds
//! the certificate's key is checked in every case.

use std::sync::Arc;

use howfar_contract::jobs::TlsVerify;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Believes as much as the job says.
#[derive(Debug)]
pub(super) struct Verifier {
    /// Checks authority and name; `None`: neither is looked at.
    authority: Option<Arc<WebPkiServerVerifier>>,
    /// The name may differ.
    any_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// `roots` must hold something unless `verify` is none.
    pub(super) fn new(
        verify: TlsVerify,
        roots: RootCertStore,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, rustls::client::VerifierBuilderError> {
        let authority = match verify {
            TlsVerify::None => None,
            TlsVerify::Ca | TlsVerify::Full => Some(
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
                    .build()?,
            ),
        };
        Ok(Self {
            authority,
            any_name: verify == TlsVerify::Ca,
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authority) = &self.authority else {
            return Ok(ServerCertVerified::assertion());
        };
        match authority.verify_server_cert(end, between, name, ocsp, now) {
            // The name is looked at last: all else holds.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
